"""Bodies of the Open Inference Protocol over HTTP: what is read, what is refused by which name."""

import dataclasses
import math
from typing import Any

import numpy as np
import orjson
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import ServingError
from scheduler.types import InferRequest, InferResponse, ModelSpec, TensorSpec, Timing
from tests.fixtures.oip_grpc import as_pairs, as_table
from tests.fixtures.oip_http import binary_body, json_body, one_id_each
from tests.fixtures.requests import DENSE, LENGTHS, VALUES, features, random_request
from transports.codecs.oip_http import Asked, decode_request, encode_response
from transports.codecs.oip_tensors import datatype_of

SPEC = FakeBackend(FakeOptions()).spec
REQUEST = random_request(SPEC, rows=5, seed=1)
ONE_EACH = one_id_each(REQUEST)


def response(scores: list[float], name: str = "default") -> InferResponse:
    outputs = {name: np.array(scores, np.float32)}
    return InferResponse("fake", "1", outputs, Timing(0.0, 0.0, len(scores)))


def decode(body: bytes, json_bytes: int | None = None) -> InferRequest:
    return decode_request(body, json_bytes, SPEC)[0]


def document(*inputs: Any, **fields: Any) -> bytes:
    return orjson.dumps({"inputs": list(inputs), **fields})


def same(decoded: InferRequest, request: InferRequest) -> bool:
    return decoded.rows == request.rows and all(
        np.array_equal(decoded.inputs[name], array) for name, array in request.inputs.items()
    )


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("arrays", "request_"),
    [
        (REQUEST.inputs, REQUEST),
        (as_pairs(REQUEST, features(SPEC)), REQUEST),
        (as_table(ONE_EACH), ONE_EACH),
    ],
    ids=["torchrec", "pairs", "table"],
)
def test_every_encoding_gives_the_same_request_as_json_and_as_binary(
    arrays: Any, request_: InferRequest, nested: bool
) -> None:
    assert same(decode(json_body(arrays, nested=nested)), request_)
    headers, body = binary_body(arrays)
    assert same(decode(body, int(*headers.values())), request_)


def test_tensors_may_be_json_and_binary_in_one_request() -> None:
    inputs = REQUEST.inputs
    described = orjson.loads(json_body({DENSE: inputs[DENSE], LENGTHS: inputs[LENGTHS]}))["inputs"]
    binary = {
        "name": VALUES,
        "shape": inputs[VALUES].shape,
        "datatype": "INT64",
        "parameters": {"binary_data_size": inputs[VALUES].nbytes},
    }
    head = document(binary, *described)
    assert same(decode(head + inputs[VALUES].tobytes(), len(head)), REQUEST)


def test_binary_tensors_are_views_of_the_body() -> None:
    own = {"binary_data_size": 12}
    ids = {"name": "id_list_features", "shape": [1, 2], "datatype": "INT64", "data": [0, 0]}
    dense = {"name": DENSE, "shape": [1, 3], "datatype": "FP32", "parameters": own}
    head = document(dense, ids)
    head += b" " * (-len(head) % 4)  # what begins at an odd address is copied
    body = head + bytes(12)
    request, _ = decode_request(body, len(head), SPEC)
    assert np.shares_memory(request.inputs[DENSE], np.frombuffer(body, np.uint8))


def test_id_parameters_and_outputs_are_taken() -> None:
    parameters = {"priority": 3, "timeout": 2500, "triton_enable_empty_final_response": True}
    body = json_body(REQUEST.inputs, id="a b", parameters=parameters, outputs=[{"name": "default"}])
    request, asked = decode_request(body, None, SPEC)
    assert (request.id, request.priority, request.timeout_s) == ("a b", 2, 0.0025)
    assert request.outputs == ("default",)
    assert asked == Asked("a b", parameters, ("default",), binary={"default": False})


def test_nothing_said_is_no_id_no_deadline_and_every_output() -> None:
    request, asked = decode_request(json_body(REQUEST.inputs), None, SPEC)
    assert (request.id, request.priority, request.timeout_s) == ("", 0, math.inf)
    assert (request.outputs, asked) == ((), Asked())


def test_fields_and_parameters_that_nobody_knows_are_ignored() -> None:
    body = json_body(REQUEST.inputs, model_name="other", extra=[{"a": 1}], parameters={"mine": 1.5})
    assert same(decode(body), REQUEST)


def test_an_answer_has_the_id_and_the_parameters_of_its_request() -> None:
    asked = Asked(id="7", parameters={"mine": 1})
    json_bytes, body = encode_response(response([0.5, 0.25]), asked)
    assert json_bytes is None
    assert orjson.loads(body) == {
        "model_name": "fake",
        "model_version": "1",
        "id": "7",
        "parameters": {"mine": 1},
        "outputs": [{"name": "default", "datatype": "FP32", "shape": [2, 1], "data": [0.5, 0.25]}],
    }


def test_an_answer_to_a_request_without_them_has_neither() -> None:
    assert not {"id", "parameters"} & set(orjson.loads(encode_response(response([1]), Asked())[1]))


def test_scores_that_json_cannot_say_are_null_there_and_bits_in_binary() -> None:
    scores = [math.nan, math.inf, -math.inf, 1.0]
    _, body = encode_response(response(scores), Asked())
    assert orjson.loads(body)["outputs"][0]["data"] == [None, None, None, 1.0]
    json_bytes, body = encode_response(response(scores), Asked(all_binary=True))
    assert body[json_bytes:] == np.array(scores, np.float32).tobytes()


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("own", [None, False, True])
def test_an_outputs_own_flag_comes_before_the_one_for_all(
    everything: bool, own: bool | None
) -> None:
    output = {"name": "default", "parameters": {} if own is None else {"binary_data": own}}
    body = json_body(
        REQUEST.inputs, parameters={"binary_data_output": everything}, outputs=[output]
    )
    _, asked = decode_request(body, None, SPEC)
    json_bytes, _ = encode_response(response([1.0]), asked)
    assert (json_bytes is not None) is (everything if own is None else own)


def test_outputs_come_in_the_order_asked_for() -> None:
    outputs = {name: np.array([1.0], np.float32) for name in ("a", "b", "c")}
    answer = InferResponse("fake", "1", outputs, Timing(0.0, 0.0, 1))
    asked = Asked(outputs=("c", "a"), binary={"a": True})
    json_bytes, body = encode_response(answer, asked)
    found = orjson.loads(body[:json_bytes])["outputs"]
    assert [(entry["name"], "data" in entry) for entry in found] == [("c", True), ("a", False)]


DENSE_ONLY = ModelSpec(
    "dense",
    "1",
    inputs=(TensorSpec("x", np.dtype(np.float32), ("rows", 3)),),
    outputs=(TensorSpec("default", np.dtype(np.float32), ("rows",)),),
    max_batch_rows=8,
)


def test_a_body_without_json_is_the_only_input_and_the_answer_binary() -> None:
    values = np.arange(6, dtype=np.float32)
    request, asked = decode_request(values.tobytes(), 0, DENSE_ONLY)
    assert request.rows == 2
    assert np.array_equal(request.inputs["x"], values.reshape(2, 3))
    assert asked.is_binary("default")


def test_a_body_without_json_must_be_whole_rows_of_a_model_with_one_input() -> None:
    with pytest.raises(ServingError, match="13 bytes are no multiple of 12"):
        decode_request(bytes(13), 0, DENSE_ONLY)
    with pytest.raises(ServingError, match="model fake has 2: float_features, id_list_features"):
        decode(bytes(12), 0)


def test_a_body_without_json_says_one_size_only() -> None:
    open_ended = TensorSpec("x", np.dtype(np.float32), ("rows", "*"))
    spec = dataclasses.replace(DENSE_ONLY, inputs=(open_ended,))
    with pytest.raises(ServingError, match="leaves more than one size open"):
        decode_request(bytes(12), 0, spec)


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("BOOL", [True, False]),
        ("FP16", [0.5, -2.0]),
        ("FP64", [0.1, 1e300]),
        ("UINT64", [0, 2**64 - 1]),
        ("INT8", [-128, 127]),
    ],
)
def test_every_kind_of_number_is_read_as_what_it_is(datatype: str, values: list[Any]) -> None:
    entry = {"name": "x", "shape": [2], "datatype": datatype, "data": values}
    array = decode(document(entry)).inputs["x"]
    assert datatype_of(array.dtype) == datatype
    assert array.tolist() == values


@pytest.mark.parametrize(
    ("shape", "data"), [([0, 3], []), ([2, 0], [[], []]), ([1, 0, 5], [[]]), ([0], [])]
)
def test_a_tensor_may_have_no_entries(shape: list[int], data: list[Any]) -> None:
    entry = {"name": "x", "shape": shape, "datatype": "FP32", "data": data}
    assert decode(document(entry)).inputs["x"].shape == tuple(shape)
