from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.types import InferResponse, ModelSpec, TensorSpec, Timing
from transports.codecs.oip_request import decode
from transports.codecs.oip_tensors import (
    TensorInfo,
    datatype_of,
    dtype_of,
    input_infos,
    max_batch_size,
    output_infos,
    priority_and_timeout_s,
    properties,
    tensor_from_raw,
    tensor_from_values,
    tensors_of,
)

FLOAT = np.dtype(np.float32)
DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
    "FP32", "FP64",
)  # fmt: skip


def refusal(error: pytest.ExceptionInfo[ServingError]) -> str:
    assert error.value.code is Code.INVALID_REQUEST
    return error.value.detail


def plain_spec(*shape: Any, outputs: tuple[TensorSpec, ...] = ()) -> ModelSpec:
    """A model that is no DLRM, with one input."""
    return ModelSpec("plain", "1", (TensorSpec("x", FLOAT, shape),), outputs, max_batch_rows=8)


def response(**outputs: Any) -> InferResponse:
    return InferResponse("plain", "1", outputs, Timing(0.0, 0.0, 1))


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_of_numbers_has_a_dtype_and_back(datatype: str) -> None:
    assert datatype_of(dtype_of(datatype)) == datatype
    assert datatype_of(dtype_of(datatype).newbyteorder(">")) == datatype


@pytest.mark.parametrize("datatype", ["BF16", "FP8", "", "fp32"])
def test_another_datatype_is_refused_by_name(datatype: str) -> None:
    with pytest.raises(ServingError) as error:
        tensor_from_raw("x", datatype, (1,), b"")
    assert refusal(error).startswith(f"tensor 'x': datatype {datatype!r} is not supported: ")


@pytest.mark.parametrize("datatype", DATATYPES)
def test_raw_bytes_become_a_view_of_the_datatype(datatype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]], dtype_of(datatype))
    data = array.tobytes()
    tensor = tensor_from_raw("x", datatype, (2, 3), data)
    assert (tensor.name, tensor.datatype, tensor.shape) == ("x", datatype, (2, 3))
    np.testing.assert_array_equal(tensor.array, array, strict=True)
    if datatype != "BOOL":
        assert np.shares_memory(tensor.array, np.frombuffer(data, np.uint8))


def test_any_byte_but_zero_is_true() -> None:
    assert tensor_from_raw("x", "BOOL", (3,), b"\x00\x02\xff").array.tolist() == [0, 1, 1]


def test_bytes_that_begin_anywhere_become_an_aligned_array() -> None:
    data = memoryview(b"\0" + np.arange(4, dtype=np.int64).tobytes())[1:]
    array = tensor_from_raw("x", "INT64", (4,), data).array
    assert array.flags.aligned
    assert array.tolist() == [0, 1, 2, 3]


def test_a_scalar_and_nothing_are_tensors_too() -> None:
    assert tensor_from_raw("x", "INT32", (), b"\1\0\0\0").array == 1
    assert tensor_from_raw("x", "INT32", (0, 5), b"").array.shape == (0, 5)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2, 3), "has 8 bytes, expected 24: shape [2, 3] of FP32"),
        ((2**62, 2**62), "is larger than any memory"),
        ((0, 2**62, 2**62), "is larger than any memory"),
        ((-1, -2), "shape [-1, -2] has a negative size"),
        ((1,) * 9, "has 9 dimensions, above the limit of 8"),
    ],
)
def test_a_shape_that_the_bytes_do_not_fill_is_refused(shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ServingError) as error:
        tensor_from_raw("x", "FP32", shape, b"\0" * 8)
    assert refusal(error).startswith("tensor 'x': ")
    assert words in refusal(error)


def test_values_are_shaped_or_counted() -> None:
    values = np.arange(6, dtype=np.float32)
    assert tensor_from_values("x", "FP32", (2, 3), values).array.shape == (2, 3)
    with pytest.raises(ServingError) as error:
        tensor_from_values("x", "FP32", (2, 2), values)
    assert refusal(error) == "tensor 'x': has 6 entries, expected 4: shape [2, 2]"


def test_a_tensor_or_output_given_twice_is_refused() -> None:
    tensor = tensor_from_raw("x", "FP32", (1,), b"\0" * 4)
    with pytest.raises(ServingError) as error:
        decode(plain_spec("rows"), [tensor, tensor], ())
    assert refusal(error) == "tensor 'x': given twice"
    with pytest.raises(ServingError) as error:
        decode(plain_spec("rows"), [tensor], ("y", "y"))
    assert refusal(error) == "output 'y': asked for twice"


def test_a_model_that_is_no_dlrm_gets_its_tensors_as_they_are() -> None:
    spec = plain_spec(2, "rows")
    request = decode(spec, [tensor_from_raw("x", "FP32", (2, 3), b"\0" * 24)], ("y",))
    assert (request.model, request.rows, request.outputs) == ("plain", 3, ("y",))
    assert list(request.inputs) == ["x"]


def test_without_a_tensor_that_has_them_there_are_no_rows() -> None:
    wrong = tensor_from_raw("x", "FP32", (3,), b"\0" * 12)
    assert decode(plain_spec(2, "rows"), [wrong], ()).rows == 0
    assert decode(plain_spec(2, "rows"), [], ()).rows == 0


def test_metadata_offer_a_dlrm_as_two_inputs_that_lead_with_the_rows() -> None:
    spec = FakeBackend(FakeOptions(dense_features=13, sparse_features=26)).spec
    assert input_infos(spec) == (
        TensorInfo("float_features", "FP32", (-1, 13)),
        TensorInfo("id_list_features", "INT64", (-1, 26)),
    )
    assert output_infos(spec) == (TensorInfo("default", "FP32", (-1, 1)),)
    assert max_batch_size(spec) == 1024
    for name in ("id_list_features.lengths", "id_list_features.values", "cat_0, cat_1"):
        assert name in properties(spec)["encodings"]


def test_a_model_whose_inputs_do_not_lead_with_the_rows_does_not_batch() -> None:
    spec = plain_spec(2, "rows")
    assert input_infos(spec) == (TensorInfo("x", "FP32", (2, -1)),)
    assert max_batch_size(spec) == 0
    assert properties(spec) == {}
    assert max_batch_size(plain_spec("rows", "*")) == 8


def test_outputs_come_in_the_order_asked_for_and_lead_with_the_rows() -> None:
    answer = response(
        a=np.array([1.0, 2.0], np.float32), b=np.arange(6, dtype=">i8").reshape(3, 2).T
    )
    b, a = tensors_of(answer, ("b", "a"))
    assert (a.name, a.datatype, a.shape) == ("a", "FP32", (2, 1))
    assert (b.name, b.datatype, b.shape) == ("b", "INT64", (2, 3))
    assert b.array.tobytes() == np.array([0, 2, 4, 1, 3, 5], "<i8").tobytes()
    assert [tensor.name for tensor in tensors_of(answer, ())] == ["a", "b"]


@pytest.mark.parametrize(
    ("parameters", "priority", "timeout_s"),
    [
        ({}, 0, np.inf),
        ({"priority": 0, "timeout": 0}, 0, np.inf),
        ({"priority": 1, "timeout": 1}, 0, 1e-6),
        ({"priority": 3, "timeout": 2_500_000}, 2, 2.5),
        ({"triton_enable_empty_final_response": True, "other": "text", "ratio": 0.5}, 0, np.inf),
    ],
)
def test_priority_and_timeout_are_read_as_triton_means_them(
    parameters: Mapping[str, Any], priority: int, timeout_s: float
) -> None:
    assert priority_and_timeout_s(parameters, plain_spec("rows")) == (priority, timeout_s)


@pytest.mark.parametrize("name", ["priority", "timeout"])
@pytest.mark.parametrize("value", [True, 1.0, -1, "1", "x\ny"])
def test_a_parameter_of_another_type_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ServingError) as error:
        priority_and_timeout_s({name: value}, plain_spec("rows"))
    assert refusal(error) == (f"parameter {name}: expected an integer of 0 or more, got {value!r}")
