"""The rules of ids against plain Python, and a batch of requests against each of them alone."""

import struct
from pathlib import Path
from typing import NamedTuple

import mmh3
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.compiled.build import NoKernelError, load_library
from backends.compiled.rows import ROWS as SOURCES
from backends.compiled.rows import RowKernel, SettledIds
from backends.ids.hashing import modulo, modulo_rows, murmur3, murmur3_rows
from backends.ids.policy import parse_policy
from backends.ids.rules import IdRules
from backends.jagged import JaggedLayout, JaggedStaging
from scheduler.errors import Missed, ServingError
from scheduler.types import InferRequest
from tests.fixtures.ids import Bags, Counts, bags_of, mapped, with_bags

SEEDS = st.sampled_from([0, 1, 42, 2**31, 2**32 - 1])
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module", params=["numpy", "compiled"])
def kernel(request: pytest.FixtureRequest, kernel_cache: Path) -> RowKernel | None:
    """The compiled library, or nothing, for NumPy."""
    if request.param == "numpy":
        return None
    try:
        return RowKernel(load_library(kernel_cache, SOURCES))
    except NoKernelError as error:
        pytest.skip(str(error))


class Case(NamedTuple):
    """Tables, their policies and what several requests ask for."""

    rows: list[int]
    policies: list[str]
    requests: list[Bags]

    def rules(self, kernel: RowKernel | None) -> IdRules:
        policies = list(map(parse_policy, self.policies, self.rows))
        settles = None if kernel is None else SettledIds(kernel, policies, self.rows)
        return IdRules(self.layout(), policies, settles=settles)

    def layout(self) -> JaggedLayout:
        names = tuple(f"f{number}" for number in range(len(self.rows)))
        return JaggedLayout("id_list_features", names, np.array(self.rows, np.int64))


@st.composite
def cases(draw: st.DrawFn, *, rejecting: bool) -> Case:
    rows = draw(st.lists(st.integers(1, 6) | st.just(2**32), min_size=1, max_size=4))
    known = ["zero", "clamp", "default_row:0", "hash:murmur3:42", "hash:modulo:7"]
    policies = draw(
        st.lists(
            st.sampled_from([*known, "reject"] if rejecting else known),
            min_size=len(rows),
            max_size=len(rows),
        )
    )
    ids = st.integers(-2, 8) | INT64
    counts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    requests = [
        [draw(st.lists(st.lists(ids, max_size=3), min_size=count, max_size=count)) for _ in rows]
        for count in counts
    ]
    return Case(rows, policies, requests)


def request_of(bags: Bags) -> InferRequest:
    request = with_bags(InferRequest("", len(bags[0]), {}), bags)
    for array in request.inputs.values():
        array.flags.writeable = False
    return request


def missed_of(counts: Counts) -> list[Missed]:
    return sorted(
        Missed(f"f{feature}", policy, found) for (feature, policy), found in counts.items()
    )


@given(case=cases(rejecting=True))
def test_every_id_is_looked_up_counted_or_refused_as_one_by_one(
    kernel: RowKernel | None, case: Case
) -> None:
    rules = case.rules(kernel)
    for bags in case.requests:
        request = request_of(bags)
        expected, counts = mapped(bags, case.policies, case.rows)
        if any(policy == "reject" for _, policy in counts):
            with pytest.raises(ServingError) as caught:
                rules.check(request)
            assert sorted(caught.value.missed) == missed_of(counts)
            continue
        checked = rules.check(request)
        if checked is None:
            assert (expected, counts) == (bags, {})
        else:
            assert bags_of(checked.request) == expected
            assert sorted(checked.missed) == missed_of(counts)
        assert bags_of(request) == bags


@given(case=cases(rejecting=False))
def test_requests_coalesce_into_what_each_looks_up_alone(
    kernel: RowKernel | None, case: Case
) -> None:
    rules = case.rules(kernel)
    staging = JaggedStaging(case.layout(), rows=2)
    requests = []
    for bags in case.requests:
        request = request_of(bags)
        checked = rules.check(request)
        requests.append(checked.request if checked else request)
    lengths, values = staging.coalesce(requests)
    rows = sum(request.rows for request in requests)
    inputs = {"id_list_features.lengths": lengths, "id_list_features.values": values}
    alone = [mapped(bags, case.policies, case.rows)[0] for bags in case.requests]
    joined = [[bag for bags in alone for bag in bags[at]] for at in range(len(case.rows))]
    assert bags_of(InferRequest("", rows, inputs)) == joined


@given(st.lists(INT64, min_size=1), SEEDS)
def test_murmur3_is_what_another_implementation_gives(ids: list[int], seed: int) -> None:
    found = murmur3(np.array(ids), np.array([seed], np.uint32)).tolist()
    assert found == [mmh3.hash(struct.pack("<q", one), seed) for one in ids]


@given(st.lists(st.tuples(INT64, st.integers(1, 2**31) | st.integers(1, 2**62)), min_size=1))
def test_modulo_is_pythons(pairs: list[tuple[int, int]]) -> None:
    numbers, rows = np.array(pairs, np.int64).T
    assert modulo(numbers, rows).tolist() == [number % limit for number, limit in pairs]


@given(st.integers(2, 2**40), st.lists(st.integers(-(2**62), 2**62), min_size=1))
def test_modulo_is_exact_beside_every_multiple(rows: int, quotients: list[int]) -> None:
    near = [quotient // rows * rows + step for quotient in quotients for step in (-1, 0, 1)]
    found = modulo(np.array(near), np.full(len(near), rows))
    assert found.tolist() == [number % rows for number in near]


ROWS = st.integers(1, 2**32) | st.sampled_from([1, 2**31 - 1, 2**31, 2**31 + 1, 2**32])


@given(st.lists(INT64, min_size=1), SEEDS, ROWS)
def test_one_number_of_rows_for_all_ids_gives_what_one_for_each_gives(
    ids: list[int], seed: int, rows: int
) -> None:
    numbers, each = np.array(ids), np.full(len(ids), rows)
    for hashed in (modulo_rows, murmur3_rows):
        alone = hashed(numbers, np.uint32(seed), rows)
        assert alone.tolist() == hashed(numbers, np.array([seed], np.uint32), each).tolist()
        assert numbers.tolist() == ids
    wrapped = ((one + seed + 2**63) % 2**64 - 2**63 for one in ids)
    expected = [number % rows for number in wrapped]
    assert modulo_rows(numbers, np.uint32(seed), rows).tolist() == expected


@given(st.integers(1, 2**62), st.lists(INT64, min_size=1))
def test_modulo_of_any_number_of_rows_is_pythons(rows: int, ids: list[int]) -> None:
    found = modulo_rows(np.array(ids), np.uint32(0), rows)
    assert found.tolist() == [number % rows for number in ids]


@given(st.lists(st.lists(INT64, max_size=3), min_size=9, max_size=9))
def test_many_tables_of_different_sizes_hash_as_few_do(bags: list[list[int]]) -> None:
    rows = [5, 5, 9, 1, 7, 1000, 3, 2**32, 8]
    policies = ["hash:modulo:7", "hash:murmur3:1"] * 4 + ["hash:murmur3:2"]
    case = Case(rows, policies, [[[bag] for bag in bags]])
    checked = case.rules(None).check(request_of(case.requests[0]))
    assert checked is not None
    expected, counts = mapped(case.requests[0], policies, rows)
    assert bags_of(checked.request) == expected
    assert sorted(checked.missed) == missed_of(counts)
