"""Padded batches on static buffers score as each request does alone, whatever came before."""

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.dlrm.gather import DENSE, IDS
from scheduler.types import Array, Batch, InferRequest
from tests.unit.test_gpu_lane import ROWS, Rig


@st.composite
def requests(draw: st.DrawFn, most_rows: int) -> InferRequest:
    rows = draw(st.integers(0, most_rows))
    lengths = np.array(draw(st.lists(st.integers(0, 3), min_size=2 * rows, max_size=2 * rows)))
    count = int(lengths.sum())
    ids = draw(st.lists(st.integers(0, 99), min_size=count, max_size=count))
    inputs: dict[str, Array] = {
        DENSE: np.full((rows, 3), draw(st.integers(0, 99)), np.float32),
        f"{IDS}.lengths": lengths.reshape(2, rows).astype(np.int64),
        f"{IDS}.values": np.array(ids, np.int64),
    }
    return InferRequest("", rows, inputs)


def expected(request: InferRequest) -> npt.NDArray[np.float32]:
    """Each row's score, bag by bag."""
    lengths, ids = request.inputs[f"{IDS}.lengths"], request.inputs[f"{IDS}.values"]
    bags = np.split(ids, np.cumsum(lengths.reshape(-1)))[:-1]
    sums = np.array([bag.sum() for bag in bags], np.float32).reshape(2, request.rows)
    scores: npt.NDArray[np.float32] = request.inputs[DENSE].sum(1) + sums[0] + 1000 * sums[1]
    return scores


BATCHES = st.lists(st.lists(requests(ROWS // 2), min_size=1, max_size=2), min_size=1, max_size=4)


@settings(max_examples=60)
@given(BATCHES)
def test_no_row_of_an_earlier_batch_or_of_the_padding_shows(
    batches: list[list[InferRequest]],
) -> None:
    rig = Rig().capture()
    for together in batches:
        packed = rig.packer.gather(Batch(tuple(together)))
        scores = rig.lane.run(packed)["s"]
        np.testing.assert_array_equal(scores, np.concatenate([*map(expected, together)]))
