"""Both decoders against arbitrary bytes and against a slow, independent encoder."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest, InferResponse, Timing
from tests.fixtures.wire import DENSE, FEATURES, Sample, make_spec, sample, to_json
from transports.codecs import predict_json, predictor
from transports.codecs.strict_json import parse_object
from transports.proto import predictor_pb2

FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def samples(draw: st.DrawFn, ids: st.SearchStrategy[int] = INT64) -> Sample:
    rows = draw(st.integers(0, 5))
    names = draw(st.lists(st.text(max_size=8), min_size=1, max_size=4, unique=True))
    dense_row = st.lists(FLOAT32, min_size=DENSE, max_size=DENSE)
    column = st.lists(st.lists(ids, max_size=4), min_size=rows, max_size=rows)
    return Sample(
        dense=draw(st.lists(dense_row, min_size=rows, max_size=rows)),
        bags={name: draw(column) for name in names},
    )


@given(samples())
def test_json_of_both_layouts_decodes_to_what_was_written(written: Sample) -> None:
    spec = make_spec(tuple(written.bags))
    for document in (written.row_wise(), written.columnar()):
        assert written.is_what(predict_json.decode_request(to_json(document), spec))


@given(samples(INT32), st.sampled_from("iq"), st.sampled_from("iq"))
def test_protobuf_of_every_width_decodes_to_what_was_written(
    written: Sample, lengths: str, ids: str
) -> None:
    body = written.message(lengths, ids).SerializeToString()
    assert written.is_what(predictor.decode_request(body, "dlrm"))


@contextlib.contextmanager
def only_refusals() -> Iterator[None]:
    """Let nothing out but a refusal of the request."""
    refusal = None
    try:
        yield
    except ServingError as refused:
        refusal = refused
    if refusal is not None:
        assert refusal.code is Code.INVALID_REQUEST
        assert 0 < len(refusal.detail) < 500


def check_protobuf(body: bytes) -> None:
    with only_refusals():
        check_shapes(predictor.decode_request(body, "dlrm"))


def check_shapes(request: InferRequest) -> None:
    assert request.rows >= 0
    for name, array in request.inputs.items():
        if name.endswith(".lengths"):
            assert array.ndim == 2
            values = request.inputs[name.replace(".lengths", ".values")]
            assert sum(map(int, array.ravel())) == values.size
        if name in {"float_features", "embedding_features"} or name.endswith(".lengths"):
            assert request.rows in array.shape


def check_json(body: bytes) -> None:
    with only_refusals():
        request = predict_json.decode_request(body, make_spec())
        assert request.inputs["float_features"].shape == (request.rows, DENSE)
        assert request.inputs["id_list_features.lengths"].shape == (len(FEATURES), request.rows)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_decoded_or_refused(body: bytes) -> None:
    check_protobuf(body)
    check_json(body)


@given(st.data())
def test_cut_messages_are_decoded_or_refused(data: st.DataObject) -> None:
    body = sample().message().SerializeToString()
    check_protobuf(body[: data.draw(st.integers(0, len(body)))])


@given(st.data(), st.sampled_from([sample().row_wise(), sample().columnar()]))
def test_cut_json_is_refused(data: st.DataObject, document: dict[str, Any]) -> None:
    body = to_json(document)
    with pytest.raises(ServingError):
        predict_json.decode_request(body[: data.draw(st.integers(0, len(body) - 1))], make_spec())


@st.composite
def mutations(draw: st.DrawFn, body: bytes) -> bytes:
    """Overwrite, insert and remove a few bytes of a valid body."""
    changed = bytearray(body)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(changed)))
        changed[start : start + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(changed)


@given(mutations(sample().message().SerializeToString()))
def test_damaged_messages_are_decoded_or_refused(body: bytes) -> None:
    check_protobuf(body)


@given(st.one_of(mutations(to_json(sample().row_wise())), mutations(to_json(sample().columnar()))))
def test_damaged_json_is_decoded_or_refused(body: bytes) -> None:
    check_json(body)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Fill every field with anything its type allows, small and extreme numbers alike."""
    number = st.one_of(st.integers(-2, 4), INT32)
    lengths = st.one_of(
        st.binary(max_size=40),
        st.lists(st.integers(0, 2), max_size=6).map(lambda v: np.array(v, np.int32).tobytes()),
        st.lists(INT64, max_size=6).map(lambda v: np.array(v, np.int64).tobytes()),
    )
    floats = st.builds(
        predictor_pb2.FloatFeatures, num_features=number, values=st.binary(max_size=40)
    )
    sparse = st.builds(
        predictor_pb2.SparseFeatures,
        num_features=number,
        lengths=lengths,
        values=st.binary(max_size=40),
        weights=st.binary(max_size=12),
    )
    message = predictor_pb2.PredictionRequest(
        batch_size=draw(number),
        float_features=draw(st.none() | floats),
        id_list_features=draw(st.none() | sparse),
        id_score_list_features=draw(st.none() | sparse),
        embedding_features=draw(st.none() | floats),
        unary_features=draw(st.none() | sparse),
    )
    return message.SerializeToString()


@given(messages())
def test_messages_of_any_numbers_are_decoded_or_refused(body: bytes) -> None:
    check_protobuf(body)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
COLUMN = st.fixed_dictionaries({"lengths": ANYTHING, "values": ANYTHING})


@given(
    st.fixed_dictionaries(
        {
            "float_features": ANYTHING | st.lists(st.lists(st.integers() | st.floats())),
            "id_list_features": ANYTHING
            | st.fixed_dictionaries(dict.fromkeys(FEATURES, ANYTHING | COLUMN)),
        },
        optional=dict.fromkeys(("rows", "id", "outputs", "timeout_ms"), ANYTHING),
    )
)
def test_documents_of_any_values_are_decoded_or_refused(document: dict[str, Any]) -> None:
    check_json(to_json(document))


# Few keys, so that they repeat; with a colon, an escape and one that is written in two ways.
KEYS = st.sampled_from(["a", "b", ":", 'q"', "\\", "\u00e9"])
PAIRS = st.recursive(
    st.text('a:\\"\n\u00e9', max_size=4) | st.integers() | st.lists(st.just(":")),
    lambda inner: st.lists(st.tuples(KEYS, inner), max_size=4).map(tuple),
    max_leaves=12,
)


def written(value: Any, *, ascii_only: bool) -> str:
    """Write tuples of pairs as objects, repeated keys and all."""
    if not isinstance(value, tuple):
        return json.dumps(value, ensure_ascii=ascii_only)
    members = (
        f"{json.dumps(key, ensure_ascii=ascii_only)}:{written(inner, ascii_only=ascii_only)}"
        for key, inner in value
    )
    return "{" + ",".join(members) + "}"


def repeats(value: Any) -> bool:
    if not isinstance(value, tuple):
        return False
    keys = [key for key, _ in value]
    return len(set(keys)) < len(keys) or any(repeats(inner) for _, inner in value)


# A long body is judged by the count of its colons alone, a short one parsed again in doubt.
@given(
    st.lists(st.tuples(KEYS, PAIRS), max_size=4).map(tuple),
    st.booleans(),
    st.sampled_from([b"", b" " * (256 << 10)]),
)
def test_an_object_is_refused_exactly_if_a_key_repeats(
    pairs: Any, ascii_only: bool, space: bytes
) -> None:
    body = written(pairs, ascii_only=ascii_only).encode() + space
    if repeats(pairs):
        with pytest.raises(ServingError, match="given twice"):
            parse_object(body)
    else:
        assert parse_object(body) == json.loads(body)


@given(st.lists(st.floats(width=32), max_size=9))
def test_protobuf_answers_carry_every_float32(scores: list[float]) -> None:
    outputs = {"default": np.array(scores, np.float32)}
    encoded = predictor.encode_response(InferResponse("m", "1", outputs, Timing(0.0, 0.0, 1)))
    data = predictor_pb2.PredictionResponse.FromString(encoded).predictions["default"].data
    np.testing.assert_array_equal(np.array(data, np.float32), outputs["default"])


@given(st.lists(FLOAT32, max_size=9))
def test_json_answers_carry_every_finite_float32(scores: list[float]) -> None:
    outputs = {"default": np.array(scores, np.float32)}
    encoded = predict_json.encode_response(InferResponse("m", "1", outputs, Timing(0.0, 0.0, 1)))
    data = json.loads(encoded)["predictions"]["default"]
    np.testing.assert_array_equal(np.array(data, np.float32), outputs["default"])
