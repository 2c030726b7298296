from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.types import InferResponse, ModelSpec, TensorSpec, Timing
from tests.fixtures.oip_grpc import message_of, scores_of, typed_message_of
from tests.fixtures.requests import random_request
from transports.codecs.oip_protobuf import (
    decode_request,
    encode_response,
    output_places,
    parse_request,
)
from transports.codecs.oip_protobuf_model import config_message, metadata_message
from transports.codecs.oip_shared import NONE
from transports.proto.open_inference_pb2 import ModelInferRequest

INTEGERS = {
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
}


def plain_spec() -> ModelSpec:
    """A model of one input of any datatype: what it is given is not checked here."""
    return ModelSpec("plain", "1", (TensorSpec("x", np.dtype(np.float32), ("rows",)),), (), 8)


def typed(datatype: str, field: str, values: list[Any]) -> ModelInferRequest:
    message = ModelInferRequest()
    tensor = message.inputs.add(name="x", datatype=datatype, shape=[len(values)])
    getattr(tensor.contents, field).extend(values)
    return message


def refusal(message: ModelInferRequest, code: Code = Code.INVALID_REQUEST) -> str:
    with pytest.raises(ServingError) as error:
        decode_request(message, plain_spec())
    assert error.value.code is code
    return error.value.detail


def test_raw_and_typed_contents_are_the_same_request() -> None:
    spec = FakeBackend(FakeOptions()).spec
    written = random_request(spec, 3, seed=1)
    for write in (message_of, typed_message_of):
        request = decode_request(write(written.inputs), spec)
        assert request.rows == 3
        assert request.inputs.keys() == written.inputs.keys()
        for name, array in written.inputs.items():
            np.testing.assert_array_equal(request.inputs[name], array, strict=True)


@pytest.mark.parametrize("datatype", INTEGERS)
def test_typed_integers_fill_their_datatype_and_no_more(datatype: str) -> None:
    field = INTEGERS[datatype]
    limits = np.iinfo(datatype.lower())
    values = [int(limits.min), 0, int(limits.max)]
    array = decode_request(typed(datatype, field, values), plain_spec()).inputs["x"]
    assert array.dtype == datatype.lower()
    assert array.tolist() == values
    if datatype[-1] in "86":  # the field is wider
        detail = refusal(typed(datatype, field, [limits.max + 1]))
        assert detail.startswith("tensor 'x': ")
        assert str(limits.max + 1) in detail


def test_typed_booleans_and_floats_are_read() -> None:
    booleans = decode_request(typed("BOOL", "bool_contents", [True, False]), plain_spec())
    assert booleans.inputs["x"].tolist() == [True, False]
    doubles = decode_request(typed("FP64", "fp64_contents", [0.1, np.inf]), plain_spec())
    assert doubles.inputs["x"].tolist() == [0.1, np.inf]


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        (typed("FP16", "fp32_contents", [1.0]),
         "tensor 'x': FP16 has no typed contents, send raw_input_contents"),
        (typed("FP32", "fp64_contents", [1.0]),
         "tensor 'x': FP32 is expected in fp32_contents, got fp64_contents"),
        (typed("BYTES", "bytes_contents", [b"a"]),
         "tensor 'x': datatype 'BYTES' is not supported: no input of the model takes texts"),
    ],
)  # fmt: skip
def test_contents_that_do_not_fit_the_datatype_are_refused(
    message: ModelInferRequest, detail: str
) -> None:
    assert refusal(message) == detail


def test_contents_that_do_not_fill_the_shape_are_refused() -> None:
    message = typed("FP32", "fp32_contents", [1.0])
    message.inputs[0].shape[0] = 3
    assert refusal(message) == "tensor 'x': has 1 entries, expected 3: shape [3]"


def test_raw_and_typed_contents_do_not_mix() -> None:
    message = message_of({"x": np.zeros(1, np.float32)})
    message.inputs[0].contents.SetInParent()  # set but empty, as some clients do
    assert decode_request(message, plain_spec()).rows == 1
    message.inputs[0].contents.fp32_contents.append(1.0)
    assert refusal(message) == (
        "tensor 'x': has contents beside raw_input_contents, expected one of them"
    )


def test_raw_contents_are_one_an_input() -> None:
    message = message_of({"x": np.zeros(1, np.float32)})
    message.raw_input_contents.append(b"")
    assert refusal(message) == (
        "raw_input_contents has 2 entries, expected one for each of the 1 inputs"
    )


@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_a_message_of_countless_tensors_is_refused(field: str) -> None:
    message = ModelInferRequest()
    for _ in range(4097):
        getattr(message, field).add()
    assert refusal(message) == f"{field} has 4097 entries, above the limit of 4096"


@pytest.mark.parametrize(
    ("field", "parameter"),
    [("inputs", "classification"), ("outputs", "classification"),
     ("inputs", "shared_memory_region")],
)  # fmt: skip
def test_what_only_other_servers_do_is_unsupported(field: str, parameter: str) -> None:
    message = ModelInferRequest()
    getattr(message, field).add(name="x").parameters[parameter].string_param = "r"
    assert f"{parameter} is not supported" in refusal(message, Code.UNSUPPORTED)


def test_outputs_in_shared_memory_are_unsupported_without_any() -> None:
    message = ModelInferRequest()
    message.outputs.add(name="x").parameters["shared_memory_region"].string_param = "r"
    with pytest.raises(ServingError, match="output 'x': shared_memory_region is not supported"):
        output_places(message, NONE)


def test_the_fields_of_a_request_are_read() -> None:
    message = message_of({"x": np.zeros(2, np.float32)}, model_version="3", id="my id")
    message.parameters["priority"].uint64_param = 2
    message.parameters["timeout"].int64_param = 1500
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    message.parameters["empty"].SetInParent()
    message.outputs.add(name="b")
    message.outputs.add(name="a")
    request = decode_request(message, plain_spec())
    assert (request.model, request.version, request.id) == ("plain", "3", "my id")
    assert (request.priority, request.timeout_s) == (1, 0.0015)
    assert request.outputs == ("b", "a")


@pytest.mark.parametrize(
    "set_parameter",
    [
        lambda parameter: setattr(parameter, "bool_param", True),
        lambda parameter: setattr(parameter, "string_param", "1"),
        lambda parameter: setattr(parameter, "double_param", 1.0),
        lambda parameter: setattr(parameter, "int64_param", -1),
    ],
)
def test_a_parameter_of_another_type_is_refused_by_name(
    set_parameter: Callable[[Any], None],
) -> None:
    message = message_of({"x": np.zeros(1, np.float32)})
    set_parameter(message.parameters["timeout"])
    assert refusal(message).startswith("parameter timeout: expected an integer of 0 or more")


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(ServingError) as error:
        parse_request(b"\xff")
    assert error.value.code is Code.INVALID_REQUEST
    assert "not an inference.ModelInferRequest" in error.value.detail


def test_an_answer_is_raw_in_the_order_asked_for_with_id_and_parameters() -> None:
    asked = ModelInferRequest(id="my id\n")
    asked.parameters["mine"].double_param = 0.5
    asked.outputs.add(name="b")
    asked.outputs.add(name="a")
    outputs = {"a": np.array([1.5, np.nan], np.float32), "b": np.zeros((2, 3), np.float32)}
    answer = encode_response(InferResponse("plain", "7", outputs, Timing(0, 0, 2)), asked)
    assert (answer.model_name, answer.model_version, answer.id) == ("plain", "7", "my id\n")
    assert answer.parameters["mine"].double_param == 0.5
    assert [output.name for output in answer.outputs] == ["b", "a"]
    assert scores_of(answer, 0).shape == (2, 3)
    assert scores_of(answer, 1).tobytes() == outputs["a"].tobytes()
    assert not any(output.HasField("contents") for output in answer.outputs)


def test_a_config_leaves_the_batch_out_of_its_dims() -> None:
    config = config_message(FakeBackend(FakeOptions()).spec)
    assert config.max_batch_size == 1024
    assert {tensor.name: list(tensor.dims) for tensor in config.input} == {
        "float_features": [3],
        "id_list_features": [2],
    }
    assert [list(output.dims) for output in config.output] == [[1]]


def test_a_model_that_does_not_batch_is_described_in_full() -> None:
    optional = TensorSpec("w", np.dtype(np.float16), ("*",), optional=True)
    spec = ModelSpec("plain", "1", (*plain_spec().inputs, optional), (), 8)
    assert config_message(spec).max_batch_size == 8
    shapes = TensorSpec("y", np.dtype(np.bool_), (2, "rows"))
    config = config_message(ModelSpec("plain", "1", (optional, shapes), (), 8))
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert [(tensor.optional, list(tensor.dims)) for tensor in config.input] == [
        (True, [-1]),
        (False, [2, -1]),
    ]


def test_metadata_name_every_version() -> None:
    metadata = metadata_message(FakeBackend(FakeOptions()).spec, ["1", "2"])
    assert list(metadata.versions) == ["1", "2"]
    assert [(tensor.name, list(tensor.shape)) for tensor in metadata.inputs] == [
        ("float_features", [-1, 3]),
        ("id_list_features", [-1, 2]),
    ]
    assert "id_list_features.lengths" in metadata.properties["encodings"]
