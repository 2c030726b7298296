import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest, ModelSpec, TensorSpec
from scheduler.validate import check_rows, validate
from tests.fixtures.gates import make_request

SPEC = FakeBackend(FakeOptions(max_batch_rows=8)).spec
DENSE, LENGTHS, VALUES = (tensor.name for tensor in SPEC.inputs)


def refusal_of(request: InferRequest, spec: ModelSpec = SPEC) -> str:
    with pytest.raises(ServingError) as refusal:
        validate(spec, request)
    assert refusal.value.code is Code.INVALID_REQUEST
    return refusal.value.detail


def with_input(name: str, array: Any, rows: int = 2) -> InferRequest:
    request = make_request(rows)
    return replace(request, inputs={**request.inputs, name: array})


@pytest.mark.parametrize("rows", [0, 1, 8])
def test_a_request_that_fits_the_spec_passes(rows: int) -> None:
    validate(SPEC, make_request(rows, outputs=("default",), timeout_s=0.001))


def test_negative_rows_are_refused() -> None:
    assert refusal_of(replace(make_request(1), rows=-1)) == "rows: must be at least 0, got -1"


def test_more_rows_than_a_request_may_have_are_refused_naming_limit_and_value() -> None:
    spec = replace(SPEC, max_request_rows=20)
    validate(spec, make_request(20))
    detail = refusal_of(make_request(21), spec)
    assert detail == "rows: 21 exceed the limit of 20 rows (max_request_rows)"


def test_a_request_may_fill_one_batch_where_nothing_else_is_said() -> None:
    assert SPEC.max_request_rows == 0
    detail = refusal_of(make_request(9))
    assert detail == "rows: 9 exceed the limit of 8 rows (max_request_rows)"


def test_rows_can_be_checked_before_there_are_any_values() -> None:
    check_rows(8, SPEC)
    with pytest.raises(ServingError, match="rows: 9 exceed the limit of 8 rows") as refusal:
        check_rows(9, SPEC)
    assert refusal.value.code is Code.INVALID_REQUEST


@pytest.mark.parametrize("priority", [0, 3])
def test_every_priority_class_there_is_may_be_asked_for(priority: int) -> None:
    validate(SPEC, make_request(1, priority=priority), priorities=4)


@pytest.mark.parametrize("priority", [-1, 4, 2**70])
def test_a_priority_outside_the_classes_is_refused_naming_limit_and_value(priority: int) -> None:
    with pytest.raises(ServingError) as refusal:
        validate(SPEC, make_request(1, priority=priority), priorities=4)
    assert refusal.value.code is Code.INVALID_REQUEST
    assert refusal.value.detail == f"priority: must be 0 to 3, got {priority}"


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, -math.inf, math.nan])
def test_a_timeout_that_is_not_above_zero_is_refused(timeout_s: float) -> None:
    detail = refusal_of(make_request(1, timeout_s=timeout_s))
    assert detail.startswith("timeout: must be above 0 s")
    assert f"{timeout_s:g}" in detail


def test_an_unknown_input_is_refused_naming_those_the_model_has() -> None:
    detail = refusal_of(with_input("dense", np.zeros((2, 3), np.float32)))
    assert detail == f"no input 'dense'; the model has {DENSE}, {LENGTHS}, {VALUES}"


@pytest.mark.parametrize("name", [DENSE, LENGTHS, VALUES])
def test_a_missing_input_is_refused_by_name(name: str) -> None:
    request = make_request(2)
    inputs = {key: array for key, array in request.inputs.items() if key != name}
    assert refusal_of(replace(request, inputs=inputs)).startswith(f"{name}: missing")


def test_an_optional_input_may_be_left_out_and_is_checked_if_it_is_not() -> None:
    weights = TensorSpec("weights", np.dtype(np.float32), ("rows",), optional=True)
    spec = replace(SPEC, inputs=(*SPEC.inputs, weights))
    validate(spec, make_request(2))
    validate(spec, with_input("weights", np.ones(2, np.float32)))
    detail = refusal_of(with_input("weights", np.ones(3, np.float32)), spec)
    assert detail == "weights: expected shape [rows=2], got [3]"


def test_values_whose_lengths_are_left_out_are_refused_naming_both() -> None:
    # Both optional: what cuts a request by rows reads the lengths of every values input it has.
    inputs = [replace(tensor, optional=tensor.name != DENSE) for tensor in SPEC.inputs]
    spec = replace(SPEC, inputs=tuple(inputs))
    dense_only = {DENSE: make_request(2).inputs[DENSE]}
    validate(spec, replace(make_request(2), inputs=dense_only))
    without = {**dense_only, VALUES: np.zeros(0, np.int64)}
    detail = refusal_of(replace(make_request(2), inputs=without), spec)
    assert VALUES in detail
    assert LENGTHS in detail


def test_an_unknown_output_is_refused_naming_those_the_model_has() -> None:
    detail = refusal_of(make_request(1, outputs=("default", "score")))
    assert detail == "no output 'score'; the model has default"


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, ">i4", ">i8"])
def test_ids_of_any_signed_width_and_byte_order_are_taken(dtype: Any) -> None:
    validate(SPEC, with_input(VALUES, np.zeros(3, dtype)))


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.uint64, np.float32, np.str_, np.object_])
def test_ids_of_another_kind_are_refused_naming_both_dtypes(dtype: Any) -> None:
    array = np.zeros(3, dtype)
    assert refusal_of(with_input(VALUES, array)) == f"{VALUES}: expected int64, got {array.dtype}"


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.bool_, np.complex64])
def test_dense_features_that_would_lose_precision_or_change_kind_are_refused(dtype: Any) -> None:
    detail = refusal_of(with_input(DENSE, np.zeros((2, 3), dtype)))
    assert detail == f"{DENSE}: expected float32, got {np.dtype(dtype)}"


def test_half_precision_dense_features_are_taken() -> None:
    validate(SPEC, with_input(DENSE, np.zeros((2, 3), np.float16)))


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        (DENSE, (3, 3), "[rows=2, 3]"),
        (DENSE, (2, 4), "[rows=2, 3]"),
        (DENSE, (6,), "[rows=2, 3]"),
        (DENSE, (2, 3, 1), "[rows=2, 3]"),
        (DENSE, (), "[rows=2, 3]"),
        (DENSE, (0, 3), "[rows=2, 3]"),
        (LENGTHS, (2, 1), "[2, rows=2]"),
        (LENGTHS, (3, 2), "[2, rows=2]"),
        (VALUES, (2, 2), "[*]"),
    ],
)
def test_a_wrong_shape_is_refused_naming_both_shapes(
    name: str, shape: tuple[int, ...], wanted: str
) -> None:
    dtype = np.float32 if name == DENSE else np.int64
    detail = refusal_of(with_input(name, np.zeros(shape, dtype)))
    assert detail == f"{name}: expected shape {wanted}, got {list(shape)}"


def test_any_number_of_values_fits_a_free_dimension() -> None:
    for count in (0, 1, 100_000):
        validate(SPEC, with_input(VALUES, np.zeros(count, np.int64)))


def test_a_spec_finds_its_inputs_by_name() -> None:
    dense = TensorSpec(DENSE, np.dtype(np.float32), ("rows", 3))
    assert SPEC.input(DENSE) == dense
    assert SPEC.input("dense") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda request: replace(request, rows=request.rows + 1),
        lambda request: replace(request, inputs={}),
        lambda request: replace(request, outputs=("",)),
        lambda request: replace(request, timeout_s=0.0),
    ],
)
def test_zero_rows_are_checked_like_any_other(
    change: Callable[[InferRequest], InferRequest],
) -> None:
    refusal_of(change(make_request(0)))
