from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.jagged import FEW, JaggedLayout, JaggedStaging, check_jagged
from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest

Bags = list[list[list[int]]]  # feature, row, ids
DTYPES = st.sampled_from(["<i4", "<i8", ">i4", ">i8"])


class Case(NamedTuple):
    """Tables and what several requests look up in them."""

    table_rows: list[int]
    requests: list[Bags]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    tables = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    most_ids = draw(st.integers(0, 3))
    least_ids = draw(st.integers(0, most_ids))
    rows = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))

    def bags(count: int) -> Bags:
        ids = (st.integers(0, table_rows - 1) for table_rows in tables)
        bag = (st.lists(one, min_size=least_ids, max_size=most_ids) for one in ids)
        return [draw(st.lists(one, min_size=count, max_size=count)) for one in bag]

    return Case(tables, [bags(count) for count in rows])


def layout_of(table_rows: list[int]) -> JaggedLayout:
    names = tuple(f"cat_{number}" for number in range(len(table_rows)))
    return JaggedLayout("ids", names, np.array(table_rows, np.int64))


def request_of(bags: Bags, dtype: str) -> InferRequest:
    rows = len(bags[0])
    lengths = np.array([[len(bag) for bag in feature] for feature in bags], dtype)
    values = np.array([one for feature in bags for bag in feature for one in bag], dtype)
    for array in (lengths, values):
        array.flags.writeable = False
    inputs: dict[str, Any] = {"ids.lengths": lengths.reshape(len(bags), rows), "ids.values": values}
    return InferRequest("", rows, inputs)


def joined(requests: list[Bags]) -> Bags:
    return [
        [bag for bags in requests for bag in bags[feature]] for feature in range(len(requests[0]))
    ]


def bags_of(lengths: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> Bags:
    ids = iter(values.tolist())
    return [[[next(ids) for _ in range(length)] for length in row] for row in lengths.tolist()]


@given(cases(), DTYPES)
def test_valid_ids_pass_the_check(case: Case, dtype: str) -> None:
    for bags in case.requests:
        check_jagged(layout_of(case.table_rows), request_of(bags, dtype))


@given(cases(), st.lists(DTYPES, min_size=5, max_size=5))
def test_coalescing_equals_joining_bag_by_bag(case: Case, dtypes: list[str]) -> None:
    staging = JaggedStaging(layout_of(case.table_rows), rows=2)
    # The same buffers serve one batch after another: larger, smaller, in another order.
    for bags in (case.requests, case.requests[:1], case.requests[::-1]):
        requests = [request_of(*pair) for pair in zip(bags, dtypes, strict=False)]
        lengths, values = staging.coalesce(requests)
        assert bags_of(lengths, values) == joined(bags)
        assert lengths.dtype == values.dtype == np.int32
        assert lengths.flags.c_contiguous


@given(cases(), DTYPES, st.data())
def test_one_id_outside_its_table_is_named(case: Case, dtype: str, data: st.DataObject) -> None:
    bags = case.requests[0]
    places = [
        (feature, row, position)
        for feature, rows in enumerate(bags)
        for row, bag in enumerate(rows)
        for position in range(len(bag))
    ]
    if not places:
        return
    feature, row, position = data.draw(st.sampled_from(places))
    limit = case.table_rows[feature]
    largest = int(np.iinfo(dtype).max)
    bad = data.draw(st.sampled_from([-1, -largest - 1, limit, limit + 1, largest]))
    bags[feature][row][position] = bad
    with pytest.raises(ServingError) as caught:
        check_jagged(layout_of(case.table_rows), request_of(bags, dtype))
    assert caught.value.code is Code.INVALID_REQUEST
    assert caught.value.detail == (
        f"ids.values: feature 'cat_{feature}' row {row} has id {bad}; "
        f"the table has {limit} rows (ids 0..{limit - 1})"
    )


ANY_INT64 = st.integers(0, 1) | st.integers(-(2**63), 2**63 - 1)


# Without more rows they are so few that Python looks at them, not NumPy.
@pytest.mark.parametrize("empty_rows", [0, FEW])
@given(
    lengths=st.lists(ANY_INT64, min_size=6, max_size=6),
    values=st.lists(ANY_INT64, max_size=6),
    table_rows=st.lists(st.integers(1, 2**62), min_size=2, max_size=2),
)
def test_any_numbers_are_judged_as_python_integers_would(
    empty_rows: int, lengths: list[int], values: list[int], table_rows: list[int]
) -> None:
    request = InferRequest(
        "",
        3 + empty_rows,
        {
            "ids.lengths": np.pad(
                np.array(lengths, np.int64).reshape(2, 3), ((0, 0), (0, empty_rows))
            ),
            "ids.values": np.array(values, np.int64),
        },
    )
    layout = layout_of(table_rows)
    negative = next((length for length in lengths if length < 0), None)
    if negative is not None:
        expected = f"has length {negative}"
    elif sum(lengths) != len(values):
        expected = f"add up to {sum(lengths)}, but ids.values has {len(values)} ids"
    else:
        limits = [table_rows[0]] * sum(lengths[:3]) + [table_rows[1]] * sum(lengths[3:])
        wrong = [one for one, limit in zip(values, limits, strict=True) if not 0 <= one < limit]
        if not wrong:
            check_jagged(layout, request)
            return
        expected = f"has id {wrong[0]};"
    with pytest.raises(ServingError) as caught:
        check_jagged(layout, request)
    assert expected in caught.value.detail
