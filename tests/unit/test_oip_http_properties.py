"""Whatever comes over HTTP is a request of the Open Inference Protocol or refused."""

from typing import Any

import numpy as np
import orjson
from hypothesis import given
from hypothesis import strategies as st

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.types import InferResponse, Timing
from tests.fixtures.requests import DENSE, LENGTHS, VALUES
from transports.codecs.oip_http import Asked, decode_request, encode_response

SPEC = FakeBackend(FakeOptions()).spec


def response(scores: list[float], name: str = "default") -> InferResponse:
    outputs = {name: np.array(scores, np.float32)}
    return InferResponse("fake", "1", outputs, Timing(0.0, 0.0, len(scores)))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)
TENSORS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from([DENSE, LENGTHS, VALUES, "id_list_features", "cat_0.lengths"]),
        "shape": st.lists(st.integers(-1, 3), max_size=4) | JSON_VALUES,
        "datatype": st.sampled_from(["FP32", "INT64", "INT32", "BOOL", "FP16", "BYTES"]),
        "data": JSON_VALUES,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(0, 30)}) | JSON_VALUES,
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {"inputs": st.lists(TENSORS, max_size=3) | JSON_VALUES},
    optional={
        "outputs": JSON_VALUES | st.lists(TENSORS, max_size=2),
        "parameters": JSON_VALUES,
        "id": JSON_VALUES,
    },
)


def outcome(body: bytes, json_bytes: int | None) -> Code | None:
    """Return why ``body`` is refused, None if it is a request whose answer can be written."""
    try:
        _, asked = decode_request(body, json_bytes, SPEC)
    except ServingError as error:
        return error.code
    encode_response(response([1.0]), Asked(asked.id, asked.parameters))
    return None


def written(value: Any) -> bytes:
    """Write JSON as clients do, with the numbers that do not fit 64 bits left out."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return b"{}"


@given(st.binary(max_size=200), st.none() | st.integers(0, 300))
def test_any_bytes_are_a_request_or_refused(body: bytes, json_bytes: int | None) -> None:
    assert outcome(body, json_bytes) in {None, Code.INVALID_REQUEST}


@given(DOCUMENTS, st.binary(max_size=60), st.booleans())
def test_any_document_is_a_request_or_refused(value: Any, tail: bytes, says_so: bool) -> None:
    head = written(value)
    allowed = {None, Code.INVALID_REQUEST, Code.UNSUPPORTED}
    assert outcome(head + tail, len(head) if says_so else None) in allowed
