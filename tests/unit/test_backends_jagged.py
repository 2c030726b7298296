from typing import Any

import numpy as np
import pytest

from backends.jagged import JaggedLayout, JaggedStaging, check_jagged
from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest

LAYOUT = JaggedLayout("ids", ("cat_0", "cat_1"), np.array([10, 1000]))


def request(lengths: Any, values: Any, dtype: Any = np.int64) -> InferRequest:
    inputs = {"ids.lengths": np.asarray(lengths, dtype), "ids.values": np.asarray(values, dtype)}
    return InferRequest("", inputs["ids.lengths"].shape[1], inputs)


def refusal(bad: InferRequest) -> str:
    with pytest.raises(ServingError) as caught:
        check_jagged(LAYOUT, bad)
    assert caught.value.code is Code.INVALID_REQUEST
    return caught.value.detail


def test_a_negative_length_is_named_with_its_feature_and_row() -> None:
    detail = refusal(request([[1, 1], [2, -1]], [0, 1, 2]))
    assert detail == "ids.lengths: feature 'cat_1' row 1 has length -1; lengths are at least 0"


@pytest.mark.parametrize(("lengths", "total"), [([[1], [1]], 2), ([[2], [2]], 4), ([[0], [0]], 0)])
def test_lengths_that_do_not_add_up_name_both_numbers(lengths: list[list[int]], total: int) -> None:
    detail = refusal(request(lengths, [1, 2, 3]))
    assert detail == f"ids.lengths: the lengths add up to {total}, but ids.values has 3 ids"


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_sum_that_wraps_around_is_not_taken_for_the_number_of_ids(dtype: Any) -> None:
    largest = int(np.iinfo(dtype).max)
    # Two of the largest and a 2 wrap to 0 in the lengths' own dtype, and so to the ids given.
    detail = refusal(request([[largest, largest], [2, 0]], [], dtype))
    assert f"add up to {2 * largest + 2}, but ids.values has 0 ids" in detail


def test_a_small_table_is_not_covered_by_a_large_neighbour() -> None:
    check_jagged(LAYOUT, request([[1], [1]], [9, 999]))
    assert "feature 'cat_0' row 0 has id 10; the table has 10 rows (ids 0..9)" in refusal(
        request([[1], [1]], [10, 999])
    )


def test_the_row_of_a_bad_id_is_found_past_empty_bags() -> None:
    detail = refusal(request([[0, 3, 0], [0, 0, 2]], [1, 2, 3, 4, 1000]))
    assert "feature 'cat_1' row 2 has id 1000" in detail


def test_no_rows_at_all_are_valid() -> None:
    check_jagged(LAYOUT, request(np.empty((2, 0)), []))


def test_views_with_strides_are_checked_as_what_they_show() -> None:
    wide = np.array([[1, 7], [1, 7]])
    ids = np.array([3, -5, 4, -5])
    check_jagged(LAYOUT, InferRequest("", 1, {"ids.lengths": wide[:, ::2], "ids.values": ids[::2]}))


def test_ids_of_a_table_past_two_billion_rows_stay_wide() -> None:
    huge = JaggedLayout("ids", ("cat_0",), np.array([2**31 + 1]))
    _, values = JaggedStaging(huge, rows=1).coalesce([request([[1]], [2**31])])
    assert values.tolist() == [2**31]


def test_buffers_grow_to_what_a_batch_needs_and_stay() -> None:
    taken: list[int] = []

    def allocate(count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        taken.append(count)
        return np.empty(count, dtype)

    staging = JaggedStaging(LAYOUT, rows=1, allocate=allocate)
    for _ in range(2):
        _, values = staging.coalesce([request([[3], [2]], [1, 2, 3, 4, 5])])
        assert values.tolist() == [1, 2, 3, 4, 5]
    assert taken == [2, 2, 8]
