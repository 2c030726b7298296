from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.types import Array, InferRequest, ModelSpec
from tests.fixtures.oip_grpc import as_pairs, as_table
from tests.fixtures.requests import DENSE, LENGTHS, VALUES, features, random_request
from transports.codecs.oip_ids import jagged_ids
from transports.codecs.oip_request import decode
from transports.codecs.oip_tensors import Tensor, datatype_of

TABLE = "id_list_features"
Tensors = dict[str, Array]


def spec() -> ModelSpec:
    return FakeBackend(FakeOptions()).spec


def decoded(tensors: Tensors, model: ModelSpec | None = None) -> InferRequest:
    given = [
        Tensor(name, datatype_of(array.dtype), array.shape, array)
        for name, array in tensors.items()
    ]
    return decode(model or spec(), given, ())


def refusal(tensors: Tensors) -> str:
    with pytest.raises(ServingError) as error:
        decoded(tensors)
    assert error.value.code is Code.INVALID_REQUEST
    return error.value.detail


def jagged(rows: int = 3) -> InferRequest:
    return random_request(spec(), rows, seed=7)


def one_id_each(rows: int = 3) -> InferRequest:
    request = random_request(spec(), rows, seed=8)
    inputs = {
        **request.inputs,
        LENGTHS: np.ones((2, rows), np.int64),
        VALUES: np.arange(2 * rows, dtype=np.int64),
    }
    return replace(request, inputs=inputs)


def assert_same(one: InferRequest, other: InferRequest) -> None:
    assert one.rows == other.rows
    assert one.inputs.keys() == other.inputs.keys()
    for name, array in one.inputs.items():
        np.testing.assert_array_equal(array, other.inputs[name], strict=True)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_every_way_to_write_one_id_a_feature_is_the_same_request(rows: int) -> None:
    request = one_id_each(rows)
    assert_same(decoded(dict(request.inputs)), request)
    assert_same(decoded(as_table(request)), request)
    assert_same(decoded(as_pairs(request, features(spec()))), request)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_jagged_ids_are_the_same_request_in_pairs(rows: int) -> None:
    request = jagged(rows)
    assert_same(decoded(as_pairs(request, features(spec()))), request)


def test_the_order_of_the_pairs_does_not_matter() -> None:
    request = jagged()
    shuffled = dict(reversed(as_pairs(request, features(spec())).items()))
    assert_same(decoded(shuffled), request)


def test_int32_ids_stay_as_narrow_as_they_came() -> None:
    table = as_table(one_id_each())
    table[TABLE] = table[TABLE].astype(np.int32)
    assert decoded(table).inputs[VALUES].dtype == np.int32


def both(first: str, second: str) -> Tensors:
    ways = {
        "own": dict(one_id_each().inputs),
        "table": as_table(one_id_each()),
        "pairs": as_pairs(one_id_each(), features(spec())),
    }
    return {**ways[first], **ways[second]}


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ("own", "table", (LENGTHS, TABLE)),
        ("own", "pairs", (LENGTHS, "cat_0.lengths")),
        ("table", "pairs", (TABLE, "cat_0.lengths")),
    ],
)
def test_ids_written_in_two_ways_are_refused(
    first: str, second: str, named: tuple[str, str]
) -> None:
    detail = refusal(both(first, second))
    assert detail == f"id_list_features: given in two ways, as {named[0]} and as {named[1]}"


def drop(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def put(name: str, array: Array) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: array})


INT = np.int64
FAULTS = [
    (drop("cat_1.values"), "cat_1.values: missing; every feature needs its lengths and values"),
    (drop("cat_0.lengths"), "cat_0.lengths: missing; every feature needs its lengths and values"),
    (put("cat_0.values", np.zeros((3, 1), INT)),
     "cat_0.values: expected one dimension, got [3, 1]"),
    (put("cat_0.values", np.zeros(3, np.float32)),
     "cat_0.values: expected signed integers (INT64 or INT32), got float32"),
    (put("cat_1.lengths", np.ones(2, INT)),
     "cat_1.lengths: has 2 rows, but cat_0.lengths has 3"),
    (put("cat_0.lengths", np.array([1, 1, 2], INT)),
     "cat_0.lengths: the lengths add up to 4, but cat_0.values has 3 ids"),
    (put("cat_1.lengths", np.array([4, -1, 0], INT)),
     "cat_1.lengths: row 1 has length -1; lengths are at least 0"),
    (put("cat_0.lengths", np.array([2**63 - 1, 2**63 - 1, 5], INT)),
     "cat_0.lengths: the lengths add up to 18446744073709551619, but cat_0.values has 3 ids"),
]  # fmt: skip


def test_a_request_without_ids_is_told_every_way_to_write_them() -> None:
    assert refusal({DENSE: one_id_each().inputs[DENSE]}) == (
        "id_list_features: missing; give id_list_features [rows, 2], or id_list_features.lengths"
        " and id_list_features.values, or FEATURE.lengths and FEATURE.values for each feature"
    )


@pytest.mark.parametrize(("edit", "detail"), FAULTS, ids=[detail for _, detail in FAULTS])
def test_broken_pairs_are_refused_by_name(edit: Callable[[Tensors], object], detail: str) -> None:
    tensors = as_pairs(one_id_each(), features(spec()))
    edit(tensors)
    assert refusal(tensors) == detail


def test_ids_that_agree_in_total_only_do_not_move_to_another_feature() -> None:
    tensors = as_pairs(one_id_each(), features(spec()))
    tensors["cat_0.values"], tensors["cat_1.values"] = np.arange(2), np.arange(4)
    assert refusal(tensors).startswith("cat_0.lengths: the lengths add up to 3")


def test_ids_without_rows_are_refused() -> None:
    tensors = as_pairs(one_id_each(0), features(spec()))
    tensors["cat_1.values"] = np.arange(2)
    assert refusal(tensors).startswith("cat_1.lengths: the lengths add up to 0")


@pytest.mark.parametrize(
    ("array", "detail"),
    [
        (np.zeros((3, 3), INT), "id_list_features: expected shape [rows, 2], got [3, 3]"),
        (np.zeros(6, INT), "id_list_features: expected shape [rows, 2], got [6]"),
        (np.zeros((3, 2), np.uint32),
         "id_list_features: expected signed integers (INT64 or INT32), got uint32"),
        (np.zeros((3, 2), np.bool_),
         "id_list_features: expected signed integers (INT64 or INT32), got bool"),
    ],
)  # fmt: skip
def test_a_broken_table_is_refused_by_name(array: Array, detail: str) -> None:
    assert refusal({DENSE: one_id_each().inputs[DENSE], TABLE: array}) == detail


def test_other_tensors_are_left_to_the_check_of_every_request() -> None:
    request = decoded({**as_table(one_id_each()), "other": np.zeros(1), "odd.values": np.zeros(1)})
    assert {"other", "odd.values"} <= request.inputs.keys()


def test_a_model_that_does_not_name_its_features_takes_no_pairs() -> None:
    own = spec()
    unnamed = tuple(replace(tensor, labels=()) for tensor in own.inputs)
    jagged_input = jagged_ids(replace(own, inputs=unnamed))
    assert jagged_input is not None
    assert "FEATURE" not in jagged_input.encodings()
    table = decoded(as_table(one_id_each()), replace(own, inputs=unnamed))
    assert_same(table, one_id_each())


def test_a_feature_called_like_the_input_does_not_stand_in_its_way() -> None:
    own = spec()
    confusing = tuple(
        replace(tensor, labels=(TABLE, "other")) if tensor.labels else tensor
        for tensor in own.inputs
    )
    request = one_id_each()
    assert_same(decoded(dict(request.inputs), replace(own, inputs=confusing)), request)


@pytest.mark.parametrize(
    "change", [{"lengths": ""}, {"optional": True}, {"dtype": np.dtype(np.float32)}]
)
def test_values_that_are_not_the_ids_of_every_request_are_no_jagged_ids(
    change: dict[str, object],
) -> None:
    own = spec()
    inputs = tuple(
        replace(tensor, **change) if tensor.lengths else tensor  # type: ignore[arg-type]
        for tensor in own.inputs
    )
    assert jagged_ids(replace(own, inputs=inputs)) is None
