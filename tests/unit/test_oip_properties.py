import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest, InferResponse, Timing
from tests.fixtures.oip_grpc import as_pairs, message_of, scores_of, typed_message_of
from tests.fixtures.requests import features, random_request
from transports.codecs.oip_protobuf import decode_request, encode_response, parse_request
from transports.proto import open_inference_pb2 as oip

SPEC = FakeBackend(FakeOptions()).spec
NAMES = st.sampled_from(
    ["float_features", "id_list_features", "cat_0.lengths", "cat_0.values", "cat_1.lengths",
     "cat_1.values", "id_list_features.lengths", "id_list_features.values", "x", ""]
)  # fmt: skip
DATATYPES = st.sampled_from(["FP32", "INT64", "INT32", "INT8", "BOOL", "FP16", "BYTES", "?"])
SIZES = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 4)
CONTENTS = {
    "bool_contents": st.booleans(),
    "int_contents": st.integers(-(2**31), 2**31 - 1),
    "int64_contents": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3),
    "fp32_contents": st.floats(width=32),
    "bytes_contents": st.binary(max_size=3),
}
PARAMETERS = {
    "bool_param": st.booleans(),
    "int64_param": st.integers(-(2**63), 2**63 - 1),
    "string_param": st.text(max_size=5),
    "double_param": st.floats(),
    "uint64_param": st.integers(0, 2**64 - 1),
}


@contextlib.contextmanager
def only_refusals() -> Iterator[None]:
    """Let nothing out but a refusal of the request."""
    refusal = None
    try:
        yield
    except ServingError as refused:
        refusal = refused
    if refusal is not None:
        assert refusal.code in {Code.INVALID_REQUEST, Code.UNSUPPORTED}
        assert 0 < len(refusal.detail) < 1000


def check(body: bytes) -> None:
    """Decode ``body`` into arrays that fit together, or refuse it."""
    with only_refusals():
        request = decode_request(parse_request(body), SPEC)
        assert request.rows >= 0
        assert request.priority >= 0
        assert request.timeout_s > 0
        for array in request.inputs.values():
            assert array.flags.aligned
            assert array.nbytes <= 64 * max(1, len(body))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_decoded_or_refused(body: bytes) -> None:
    check(body)


@st.composite
def messages(draw: st.DrawFn) -> oip.ModelInferRequest:
    message = oip.ModelInferRequest(id=draw(st.text(max_size=3)))
    for _ in range(draw(st.integers(0, 4))):
        shape = draw(st.lists(SIZES, max_size=4))
        tensor = message.inputs.add(name=draw(NAMES), datatype=draw(DATATYPES), shape=shape)
        if draw(st.booleans()):
            field = draw(st.sampled_from(sorted(CONTENTS)))
            values: Any = draw(st.lists(CONTENTS[field], max_size=6))
            getattr(tensor.contents, field).extend(values)
    if draw(st.booleans()):
        message.raw_input_contents.extend(draw(st.lists(st.binary(max_size=24), max_size=4)))
    for name in draw(st.sets(st.sampled_from(["priority", "timeout", "other"]))):
        choice = draw(st.sampled_from(sorted(PARAMETERS)))
        setattr(message.parameters[name], choice, draw(PARAMETERS[choice]))
    for name in draw(st.lists(NAMES, max_size=2)):
        message.outputs.add(name=name)
    return message


@given(messages())
def test_messages_of_any_fields_are_decoded_or_refused(message: oip.ModelInferRequest) -> None:
    check(message.SerializeToString())


@given(st.data(), st.integers(0, 4))
def test_damaged_messages_are_decoded_or_refused(data: st.DataObject, rows: int) -> None:
    request = random_request(SPEC, rows, seed=rows)
    write = data.draw(st.sampled_from([message_of, typed_message_of]))
    tensors = data.draw(st.sampled_from([request.inputs, as_pairs(request, features(SPEC))]))
    body = bytearray(write(tensors).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(body[: data.draw(st.integers(0, len(body)))]))


def bits(request: InferRequest) -> dict[str, tuple[tuple[int, ...], bytes]]:
    return {name: (array.shape, array.tobytes()) for name, array in request.inputs.items()}


@given(st.integers(0, 6), st.integers(0, 2**31))
def test_every_way_to_write_a_jagged_request_is_the_same(rows: int, seed: int) -> None:
    request = random_request(SPEC, rows, seed)
    expected = bits(request)
    for tensors in (request.inputs, as_pairs(request, features(SPEC))):
        for write in (message_of, typed_message_of):
            decoded = decode_request(parse_request(write(tensors).SerializeToString()), SPEC)
            assert decoded.rows == rows
            assert bits(decoded) == expected


@given(st.lists(st.floats(width=32)))
def test_answers_carry_every_float32(values: list[float]) -> None:
    scores = np.array(values, np.float32)
    answer = InferResponse("fake", "1", {"default": scores}, Timing(0.0, 0.0, 1))
    body = encode_response(answer, oip.ModelInferRequest()).SerializeToString()
    read = scores_of(oip.ModelInferResponse.FromString(body))
    assert read.shape == (len(values), 1)
    assert read.tobytes() == scores.tobytes()
