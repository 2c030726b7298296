"""What rows share is computed once, and every score is that of the request that does not say so."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.dlrm.gather import (
    DENSE,
    DENSE_ROWS,
    FEWEST_SHARING_ROWS,
    PATTERN_OF_ROW,
    PATTERNS,
    Staging,
)
from backends.ids.policy import parse_policy
from backends.ids.rules import IdRules
from backends.jagged import JaggedLayout
from backends.native_dlrm.backend import NativeDlrmBackend
from backends.torch_dlrm.backend import TorchDlrmBackend
from backends.torch_dlrm.export.golden import OUTPUT
from scheduler.rows import cut
from scheduler.types import Array, Batch, InferRequest, ModelSpec
from tests.fixtures.artifacts import load
from tests.fixtures.native import load_native, need_kernel
from tests.fixtures.sharing import LENGTHS, VALUES, sharing, unsaid

Scores = npt.NDArray[np.float32]
Backend = NativeDlrmBackend | TorchDlrmBackend
MOST_ROWS = 400  # several blocks of every plan


@pytest.fixture(scope="module", params=["fused", "lean", "compiled", "numba"])
def backend(request: pytest.FixtureRequest, small_artifact: Path, kernel_cache: Path) -> Backend:
    if request.param in ("fused", "lean"):
        need_kernel(kernel_cache, request.param)
        cache = str(kernel_cache)
        return load(small_artifact, max_batch_rows=MOST_ROWS, plan=request.param, cache_dir=cache)
    options = {"lanes": 1, "kernel": request.param, "max_batch_rows": MOST_ROWS}
    return load_native(small_artifact, kernel_cache, **options)


def score(backend: Backend, requests: list[InferRequest]) -> Scores:
    scores = np.asarray(backend.prepare(Batch(tuple(requests)))()[OUTPUT])
    return scores.astype(np.float32, casting="no")


def width(spec: ModelSpec) -> int:
    return int(spec.inputs[0].shape[1])


def _numbers(chosen: npt.NDArray[np.bool_]) -> list[int]:
    numbers: list[int] = np.flatnonzero(chosen).tolist()
    return numbers


def drawn(spec: ModelSpec, rows: int, kind: str, seed: int) -> InferRequest:
    """Return a request that shares all dense values, or any columns, and any features."""
    random = np.random.default_rng(seed)
    columns, features = random.random(width(spec)) < 0.5, random.random(26) < random.random()
    if kind == "dense":
        columns[:] = True
    chosen = features[: len(spec.inputs[1].labels)]
    request = sharing(spec, rows, _numbers(columns), _numbers(chosen), seed)
    return unsaid(request) if kind == "unsaid" else request


DRAWN = st.tuples(
    st.sampled_from([0, 1, 2, 16, 40, 130]),
    st.sampled_from(["unsaid", "dense", "some"]),
    st.integers(0, 2**31),
)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.lists(DRAWN, min_size=1, max_size=3))
def test_sharing_requests_score_as_those_that_do_not_say_so(
    backend: Backend, several: list[tuple[int, str, int]]
) -> None:
    requests = [drawn(backend.spec, *one) for one in several]
    ours, plain = score(backend, requests), score(backend, [unsaid(one) for one in requests])
    np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-6)
    columns = width(backend.spec)
    if not any(one.shared and len(one.shared[DENSE]) == columns for one in requests):
        # Then the same products are added up in the same order.
        np.testing.assert_array_equal(ours, plain)


def test_what_is_said_to_be_shared_is_read_from_the_first_row_alone(backend: Backend) -> None:
    rows, spec = 40, backend.spec  # one block of every plan
    whole = sharing(spec, rows, range(width(spec)), (), seed=1)
    dense = whole.inputs[DENSE].copy()
    dense[1:] = np.nan  # which no row would survive
    odd = replace(whole, inputs={**whole.inputs, DENSE: dense})
    np.testing.assert_allclose(
        score(backend, [odd]), score(backend, [unsaid(whole)]), rtol=0, atol=1e-6
    )


def test_a_user_of_no_number_leaves_neighbours_alone(backend: Backend) -> None:
    spec, columns = backend.spec, range(width(backend.spec))
    user, other = sharing(spec, 40, columns, (0, 1), 1), sharing(spec, 90, columns, (2,), 2)
    nothing = np.full_like(user.inputs[DENSE], np.nan)
    odd = replace(user, inputs={**user.inputs, DENSE: nothing})
    scores = score(backend, [other, odd, other])
    assert np.isnan(scores[90:130]).all()
    expected = score(backend, [other, user, other])
    np.testing.assert_array_equal(scores[:90], expected[:90])
    np.testing.assert_array_equal(scores[130:], expected[130:])


def test_pieces_of_a_sharing_request_score_as_the_whole(backend: Backend) -> None:
    whole = sharing(backend.spec, 100, range(width(backend.spec)), (0, 3), seed=4)
    pieces = [cut(backend.spec, whole, *rows) for rows in ((0, 30), (30, 31), (31, 100))]
    assert all(piece.shared == whole.shared for piece in pieces)
    expected = score(backend, [unsaid(whole)])
    np.testing.assert_allclose(score(backend, pieces), expected, rtol=0, atol=1e-6)


def test_the_compiled_kernel_looks_up_a_shared_bag_once(
    small_artifact: Path, kernel_cache: Path
) -> None:
    backend = load_native(small_artifact, kernel_cache, lanes=1)
    if backend.spec.properties["plan"] != "compiled":
        pytest.skip("no compiled kernel here")
    whole = sharing(backend.spec, 40, (), (0,), seed=5)
    lengths, values = whole.inputs[LENGTHS].copy(), whole.inputs[VALUES]
    bag = int(lengths[0, 0])
    assert bag
    odd = values.astype(np.int64)
    odd[bag : 40 * bag] += 1
    plain, changed = (replace(whole, inputs={**whole.inputs, VALUES: ids}) for ids in (values, odd))
    np.testing.assert_array_equal(score(backend, [changed]), score(backend, [plain]))
    assert (score(backend, [unsaid(changed)]) != score(backend, [plain])).any()


LAYOUT = JaggedLayout("id_list_features", ("a", "b"), np.array([100, 100]))


def staging() -> Staging:
    return Staging(LAYOUT, 2, 100, np.empty)


Make = Callable[[int, tuple[int, ...], tuple[int, ...]], InferRequest]


@pytest.fixture
def make() -> Make:
    def one(rows: int, columns: tuple[int, ...], features: tuple[int, ...]) -> InferRequest:
        inputs: dict[str, Array] = {
            DENSE: np.zeros((rows, 2), np.float32),
            LENGTHS: np.ones((2, rows), np.int64),
            VALUES: np.zeros(2 * rows, np.int64),
        }
        return InferRequest("", rows, inputs, shared={DENSE: columns, LENGTHS: features})

    return one


def test_patterns_begin_after_a_requests_first_row(make: Make) -> None:
    plain = unsaid(make(3, (0, 1), (0,)))
    inputs = staging().gather_patterns(Batch((make(16, (0, 1), (1,)), plain, make(17, (0,), (0,)))))
    patterns = inputs[PATTERNS][inputs[PATTERN_OF_ROW]].tolist()
    assert patterns[0] == patterns[19] == [0, 0, 0]
    assert patterns[1:16] == [[1, 0, 1]] * 15
    assert patterns[16:19] == [[0, 0, 0]] * 3
    assert patterns[20:] == [[0, 1, 0]] * 16


def test_dense_values_are_gathered_once_where_all_are_shared(make: Make) -> None:
    inputs = staging().gather_distinct(Batch((make(2, (), ()), make(20, (0, 1), ()))))
    assert inputs[DENSE].shape == (3, 2)
    assert inputs[DENSE_ROWS].tolist() == [0, 1] + [2] * 20


def test_what_does_not_pay_is_gathered_as_ever(make: Make) -> None:
    few = Batch((make(FEWEST_SHARING_ROWS - 1, (0, 1), (0, 1)),))
    assert PATTERNS not in staging().gather_patterns(few)
    assert DENSE_ROWS not in staging().gather_distinct(few)
    some = Batch((make(50, (0,), (0, 1)),))
    assert DENSE_ROWS not in staging().gather_distinct(some)


def test_ids_made_rows_are_still_said_to_be_shared() -> None:
    rules = IdRules(LAYOUT, [parse_policy("hash:murmur3:1", 100)] * 2)
    inputs: dict[str, Array] = {LENGTHS: np.ones((2, 2), int), VALUES: np.array([500, 500, 1, 2])}
    request = InferRequest("", 2, inputs)
    checked = rules.check(replace(request, shared={LENGTHS: (0,)}))
    assert checked is not None
    assert checked.request.shared == {LENGTHS: (0,)}
    rows = checked.request.inputs[VALUES].tolist()
    assert rows[0] == rows[1]
