import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest, ModelSpec, TensorSpec
from scheduler.validate import validate
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


def test_more_rows_than_one_batch_holds_are_refused_naming_limit_and_value() -> None:
    detail = refusal_of(make_request(9))
    for fact in ("rows: 9", "limit of 8", "max_batch_rows"):
        assert fact in detail


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
