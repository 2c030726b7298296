"""The compiled library gives what NumPy gives, for any ids, tables and rows."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.compiled.build import NoKernelError, load_library
from backends.compiled.rows import ROWS, RowKernel, SettledIds, find_rows_kernel
from backends.dlrm.stored_rows import UnstorableError, stored_rows
from backends.ids.hashing import modulo_rows, murmur3_rows
from backends.ids.policy import Policy

HASHES = {"murmur3": murmur3_rows, "modulo": modulo_rows}
POLICIES = st.builds(
    Policy,
    st.just("hash"),
    function=st.sampled_from(["murmur3", "modulo"]),
    seed=st.integers(0, 2**32 - 1),
)
ROWS_OF_TABLES = st.integers(1, 2**32) | st.sampled_from([1, 2, 2**31 - 1, 2**31, 2**32])
IDS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-1, 0, -(2**63), 2**63 - 1])
FLOATS = st.floats(-70000, 70000, width=32) | st.floats(-(2.0**-20), 2.0**-20, width=32)


@pytest.fixture(scope="module")
def kernel(kernel_cache: Path) -> RowKernel:
    try:
        return RowKernel(load_library(kernel_cache, ROWS))
    except NoKernelError as error:
        pytest.skip(str(error))


@given(
    tables=st.lists(st.tuples(POLICIES, ROWS_OF_TABLES, st.lists(IDS, max_size=300)), min_size=1)
)
@settings(max_examples=25)
def test_ids_are_hashed_as_numpy_does(
    kernel: RowKernel, tables: list[tuple[Policy, int, list[int]]]
) -> None:
    settled = SettledIds(kernel, [one[0] for one in tables], [one[1] for one in tables])
    ids = [np.array(one[2], np.int64) for one in tables]
    given_ids = np.concatenate(ids)
    given_ids.flags.writeable = False
    counts = np.array([len(own) for own in ids], np.int64)
    found = settled(counts[:, None], given_ids)
    right = [
        HASHES[policy.function](own, np.uint32(policy.seed), rows)
        for (policy, rows, _), own in zip(tables, ids, strict=True)
    ]
    assert found is not None
    assert np.array_equal(found.values, np.concatenate(right))
    assert not found.outside.any()
    assert np.array_equal(found.counts, counts)


@pytest.mark.parametrize("lengths", [[[3, -1]], [[1, 2]], [[2**62, 2]], [[0, 1]]])
def test_bags_that_do_not_fit_the_ids_are_left_to_be_refused(
    kernel: RowKernel, lengths: list[list[int]]
) -> None:
    settled = SettledIds(kernel, [Policy("zero")], [10])
    assert settled(np.array(lengths), np.array([1, 20])) is None


@given(
    rows=st.integers(1, 20),
    dim=st.integers(1, 40),
    padding=st.integers(0, 5),
    data=st.data(),
)
@settings(max_examples=25)
def test_rows_are_quantised_as_numpy_does(
    kernel: RowKernel, rows: int, dim: int, padding: int, data: st.DataObject
) -> None:
    drawn = data.draw(st.lists(FLOATS, min_size=1, max_size=rows * dim))
    values = np.resize(np.array(drawn, np.float32), (rows, dim))
    assert stored(values, dim + 4 + padding, kernel) == stored(values, dim + 4 + padding, None)


def stored(values: np.ndarray, row_bytes: int, faster: RowKernel | None) -> tuple[int, bytes]:
    try:
        return -1, stored_rows("int8", values, row_bytes, faster).tobytes()
    except UnstorableError as error:
        return error.place, b""


def test_where_no_library_can_be_built_numpy_does_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert find_rows_kernel(tmp_path / "file") is None
