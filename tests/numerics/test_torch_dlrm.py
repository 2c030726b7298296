import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.dlrm.gather import DENSE
from backends.torch_dlrm.backend import TorchDlrmBackend
from backends.torch_dlrm.export.golden import LENGTHS, OUTPUT, VALUES, Golden
from backends.torch_dlrm.torchscript import load_module
from scheduler.errors import ServingError
from scheduler.types import Array, Batch, InferRequest
from tests.fixtures.artifacts import load, take_rows

TOLERANCE = 1e-6
SIZES = ([128], [1] * 8, [3, 1, 40, 0, 7], [64, 64], [5, 0, 0, 5], [0], [0, 0], [127, 1])


@pytest.fixture(scope="module")
def direct(small_artifact: Path, golden: Golden) -> Array:
    """The artifact's own scores, with nothing of ours around it."""
    module = load_module(small_artifact / "model.pt", torch.device("cpu"))
    inputs = {
        DENSE: torch.tensor(golden.inputs[DENSE]),
        LENGTHS: torch.tensor(golden.inputs[LENGTHS]).flatten(),
        VALUES: torch.tensor(golden.inputs[VALUES]),
    }
    with torch.inference_mode():
        scores: Array = module(inputs)[OUTPUT].numpy()
    return scores


def cut(golden: Golden, sizes: list[int]) -> Iterator[InferRequest]:
    for start, stop in pairwise(np.cumsum([0, *sizes]).tolist()):
        yield take_rows(golden.request(), start, stop)


def score(backend: TorchDlrmBackend, *requests: InferRequest) -> Array:
    return backend.prepare(Batch(requests))()[OUTPUT]


def assert_close(actual: Array, expected: Array) -> None:
    assert actual.dtype == expected.dtype == np.float32
    assert actual.shape == expected.shape
    gap = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    assert (gap <= TOLERANCE).all()


def test_the_artifact_itself_gives_the_golden_scores(direct: Array, golden: Golden) -> None:
    assert_close(direct, golden.served[OUTPUT])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_coalesced_requests_score_as_the_artifact_run_directly(
    small_backend: TorchDlrmBackend, golden: Golden, direct: Array, sizes: list[int]
) -> None:
    scores = score(small_backend, *cut(golden, sizes))
    assert_close(scores, direct[: sum(sizes)])


def test_a_row_alone_scores_as_in_company(
    small_backend: TorchDlrmBackend, golden: Golden, direct: Array
) -> None:
    alone = [score(small_backend, request) for request in cut(golden, [1] * 128)]
    assert_close(np.concatenate(alone), direct)


def test_uniform_bags_take_the_short_way_to_the_same_scores(
    small_backend: TorchDlrmBackend,
) -> None:
    random = np.random.default_rng(1)

    def request(rows: int, bag: int) -> InferRequest:
        inputs: dict[str, Any] = {
            DENSE: random.standard_normal((rows, 13), np.float32),
            LENGTHS: np.full((26, rows), bag),
            VALUES: random.integers(0, 1000, 26 * rows * bag),
        }
        return InferRequest("", rows, inputs)

    requests = (request(4, 1), request(1, 3), request(9, 1))
    together = score(small_backend, *requests)
    alone = [score(small_backend, one) for one in requests]
    assert_close(together, np.concatenate(alone))


def test_answers_stay_what_they_were_when_the_buffers_are_used_again(
    small_backend: TorchDlrmBackend, golden: Golden, direct: Array
) -> None:
    first, second = cut(golden, [64, 64])
    kept = score(small_backend, first)
    for _ in range(2 * small_backend.lanes):
        score(small_backend, second)
    assert_close(kept, direct[:64])


def test_lanes_run_side_by_side_without_mixing_rows(
    small_backend: TorchDlrmBackend, golden: Golden, direct: Array
) -> None:
    assert small_backend.lanes == 2
    parts = list(cut(golden, [16] * 8))
    start = threading.Barrier(2)

    def worker(mine: list[int]) -> list[tuple[int, Array]]:
        start.wait(timeout=60)
        return [(part, score(small_backend, parts[part])) for _ in range(50) for part in mine]

    with ThreadPoolExecutor(2) as pool:
        results = [*pool.map(worker, ([0, 2, 4, 6], [7, 5, 3, 1]))]
    for part, scores in (pair for result in results for pair in result):
        wanted = direct[16 * part : 16 * part + 16]
        assert_close(scores, wanted)


@pytest.mark.parametrize("dtype", ["<i4", "<i8", ">i4", ">i8"])
def test_ids_of_any_integer_width_score_the_same(
    small_backend: TorchDlrmBackend, golden: Golden, direct: Array, dtype: str
) -> None:
    ids = {name: golden.inputs[name].astype(dtype) for name in (LENGTHS, VALUES)}
    request = InferRequest("", golden.rows, {**golden.inputs, **ids})
    small_backend.check(request)
    scores = score(small_backend, request)
    assert_close(scores, direct)


def test_not_a_number_stays_in_its_own_row(
    small_backend: TorchDlrmBackend, golden: Golden, direct: Array
) -> None:
    dense = golden.inputs[DENSE].copy()
    dense[5] = np.nan
    scores = score(small_backend, InferRequest("", 128, {**golden.inputs, DENSE: dense}))
    others = np.arange(128) != 5
    assert np.isnan(scores[5])
    assert_close(scores[others], direct[others])


def test_an_id_past_its_table_is_refused_before_the_lookup(
    small_backend: TorchDlrmBackend, golden: Golden
) -> None:
    values = golden.inputs[VALUES].copy()
    values[0] = 1000
    with pytest.raises(ServingError, match=r"id 1000; the table has 1000 rows \(ids 0\.\.999\)"):
        small_backend.check(InferRequest("", 128, {**golden.inputs, VALUES: values}))


def test_the_spec_tells_what_the_wire_carries(small_backend: TorchDlrmBackend) -> None:
    spec = small_backend.spec
    names = tuple(f"cat_{number}" for number in range(26))
    assert [(one.name, one.dtype.name, one.shape) for one in spec.inputs] == [
        (DENSE, "float32", ("rows", 13)),
        (LENGTHS, "int64", (26, "rows")),
        (VALUES, "int64", ("*",)),
    ]
    assert spec.inputs[1].labels == names
    assert [(one.name, one.dtype.name, one.shape) for one in spec.outputs] == [
        (OUTPUT, "float32", ("rows",))
    ]
    assert (spec.name, spec.version, spec.max_batch_rows) == ("small", "1", 128)
    assert spec.properties["device"] == "cpu"


def test_a_closed_backend_says_so(small_artifact: Path) -> None:
    backend = load(small_artifact, max_batch_rows=2)
    backend.close()
    with pytest.raises(RuntimeError, match="load"):
        backend.spec  # noqa: B018


def test_a_forward_takes_no_more_threads_than_it_was_given(
    small_artifact: Path, golden: Golden
) -> None:
    backend = load(small_artifact, lanes=1, intra_op_threads=1)
    batch = Batch((golden.request(),))

    def threads_after(runs: int) -> set[str]:
        for _ in range(runs):
            backend.prepare(batch)()
        return set(os.listdir("/proc/self/task"))

    # In a thread of its own, as a lane is: OpenMP's setting does not reach other threads.
    with ThreadPoolExecutor(1) as lane:
        before = lane.submit(threads_after, 0).result(timeout=60)
        assert lane.submit(threads_after, 3).result(timeout=60) <= before
