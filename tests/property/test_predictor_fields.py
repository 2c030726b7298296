"""What is read by hand is what protobuf would have read."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ServingError
from transports.codecs.predictor_fields import FLOAT_FIELDS, SPARSE_FIELDS, parse, read
from transports.proto.predictor_pb2 import FloatFeatures, PredictionRequest, SparseFeatures

NUMBERS = st.sampled_from([0, 1, 127, 128, 300, 2**31 - 1, -1, -(2**31)])
BYTES = st.binary(max_size=200)
FLOATS = st.builds(FloatFeatures, num_features=NUMBERS, values=BYTES)
SPARSE = st.builds(SparseFeatures, num_features=NUMBERS, lengths=BYTES, values=BYTES, weights=BYTES)


def serialised(fields: dict[str, Any]) -> bytes:
    return PredictionRequest(**fields).SerializeToString()


MESSAGES = st.fixed_dictionaries(
    {"batch_size": NUMBERS},
    optional={
        **dict.fromkeys(FLOAT_FIELDS, FLOATS),
        **dict.fromkeys(SPARSE_FIELDS, SPARSE),
    },
).map(serialised)


@st.composite
def bodies(draw: Any) -> bytes:
    """Return messages as they are, cut off, joined, and with bytes changed."""
    body = bytearray(draw(MESSAGES))
    for place, byte in draw(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)))):
        if place < len(body):
            body[place] = byte
    end = draw(st.integers(0, len(body)))
    return bytes(body[:end]) if draw(st.booleans()) else bytes(body) + draw(MESSAGES)


@given(MESSAGES)
def test_messages_as_protobuf_writes_them_are_read_alike(body: bytes) -> None:
    found = read(body)
    assert found in (None, parse(body))


@given(bodies())
def test_any_other_bytes_are_read_alike_or_left_to_protobuf(body: bytes) -> None:
    found = read(body)
    if found is not None:
        assert found == parse(body)


@given(st.binary(max_size=60))
def test_noise_is_read_alike_or_left_to_protobuf(body: bytes) -> None:
    found = read(body)
    if found is None:
        return
    try:
        assert found == parse(body)
    except ServingError as error:
        raise AssertionError(body) from error


def test_what_clients_send_is_read_by_hand() -> None:
    body = PredictionRequest(
        batch_size=300,
        float_features=FloatFeatures(num_features=13, values=b"v" * 15600),
        id_list_features=SparseFeatures(num_features=26, lengths=b"l" * 31200, values=b"i" * 9),
        id_score_list_features=SparseFeatures(),
    ).SerializeToString()
    found = read(body)
    assert found is not None
    assert found == parse(body)
    assert found[1]["id_list_features"][1] == [b"l" * 31200, b"i" * 9, b""]
