"""A context and its candidates are the request spelled out, over every wire that has them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
from hypothesis import given
from hypothesis import strategies as st

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.types import Array, InferRequest
from tests.fixtures.oip_grpc import message_of, typed_message_of
from tests.fixtures.oip_http import JSON_BYTES, binary_body, json_body
from tests.fixtures.ranking import Ranked, random_ranked
from tests.fixtures.requests import DENSE, LENGTHS, features
from transports.codecs import oip_http, oip_protobuf, predict_json

SPEC = FakeBackend(FakeOptions(dense_features=3, sparse_features=4)).spec


@st.composite
def ranked(draw: st.DrawFn) -> Ranked:
    columns = draw(st.lists(st.integers(0, 2), unique=True))
    shared = draw(st.lists(st.sampled_from(features(SPEC)), unique=True, max_size=3))
    return random_ranked(
        SPEC, draw(st.integers(0, 6)), draw(st.integers(0, 2**31)), columns, shared
    )


def assert_shared(request: InferRequest, asked: Ranked) -> None:
    """What the request says that all rows have the same is what the context has."""
    numbers = tuple(features(SPEC).index(name) for name in asked.shared)
    assert request.shared is not None
    assert request.shared[DENSE] == asked.columns
    assert sorted(request.shared[LENGTHS]) == sorted(numbers)


def assert_spelled_out(request: InferRequest, expected: InferRequest) -> None:
    assert request.rows == expected.rows
    assert request.inputs.keys() == expected.inputs.keys()
    for name, array in expected.inputs.items():
        assert request.inputs[name].shape == array.shape, name
        assert request.inputs[name].dtype == array.dtype, name
        assert request.inputs[name].tobytes() == array.tobytes(), name


@given(ranked())
def test_json_of_both_layouts_is_the_request_spelled_out(asked: Ranked) -> None:
    for document in (asked.row_wise(), asked.columnar()):
        request = predict_json.decode_request(orjson.dumps(document), SPEC)
        assert_spelled_out(request, asked.spelled_out())
        assert_shared(request, asked)


def read(tensors: dict[str, Array]) -> Iterator[InferRequest]:
    """Yield what every wire of the Open Inference Protocol makes of ``tensors``."""
    yield oip_http.decode_request(json_body(tensors), None, SPEC)[0]
    headers, body = binary_body(tensors)
    yield oip_http.decode_request(body, int(headers[JSON_BYTES]), SPEC)[0]
    for write in (message_of, typed_message_of):
        message = oip_protobuf.parse_request(write(tensors).SerializeToString())
        yield oip_protobuf.decode_request(message, SPEC)


@given(ranked())
def test_tensors_in_every_encoding_are_the_request_spelled_out(asked: Ranked) -> None:
    for tensors in (asked.torchrec(), asked.pairs()):
        for request in read(tensors):
            assert_spelled_out(request, asked.spelled_out())


@given(ranked(), st.booleans())
def test_the_context_and_the_candidates_may_differ_in_encoding(asked: Ranked, own: bool) -> None:
    ways = (asked.torchrec(), asked.pairs())
    mixed = {name: array for name, array in ways[own].items() if name.startswith("context.")}
    mixed |= {n: array for n, array in ways[not own].items() if not n.startswith("context.")}
    for request in read(mixed):
        assert_spelled_out(request, asked.spelled_out())


@given(ranked())
def test_narrow_numbers_stay_narrow_and_wide_ones_win(asked: Ranked) -> None:
    def narrowed(prefix: str) -> dict[str, Array]:
        return {
            name: array.astype(np.int32)
            if name.startswith(prefix) and array.dtype == np.int64
            else array
            for name, array in asked.torchrec().items()
        }

    for prefix in ("", "context."):
        headers, body = binary_body(narrowed(prefix))
        request, _ = oip_http.decode_request(body, int(headers[JSON_BYTES]), SPEC)
        for name, array in asked.spelled_out().inputs.items():
            np.testing.assert_array_equal(request.inputs[name], array)
            if array.dtype == np.int64 and not prefix:
                assert request.inputs[name].dtype == np.int32


@contextlib.contextmanager
def only_refusals() -> Iterator[None]:
    refusal = None
    try:
        yield
    except ServingError as refused:
        refusal = refused
    if refusal is not None:
        assert refusal.code is Code.INVALID_REQUEST
        assert 0 < len(refusal.detail) < 500


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 4) | st.floats(width=32) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
PATHS = [
    ("context",),
    ("rows",),
    ("float_features",),
    ("id_list_features",),
    ("id_list_features", "cat_3"),
    ("context", "float_features"),
    ("context", "float_columns"),
    ("context", "id_list_features"),
    ("context", "id_list_features", "cat_0"),
    ("context", "nope"),
]


@given(ranked(), st.booleans(), st.lists(st.tuples(st.sampled_from(PATHS), VALUES), max_size=3))
def test_any_json_is_decoded_or_refused(
    asked: Ranked, columnar: bool, edits: list[tuple[tuple[str, ...], Any]]
) -> None:
    document = asked.columnar() if columnar else asked.row_wise()
    for path, value in edits:
        place: Any = document
        for name in path[:-1]:
            place = place.get(name) if type(place) is dict else None
        if type(place) is dict:
            place[path[-1]] = value
    with only_refusals():
        check(predict_json.decode_request(orjson.dumps(document), SPEC))


SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
DTYPES = st.sampled_from(["<f4", "<f2", "<i8", "<i4", "|i1", "|u1", "|b1"])


@given(ranked(), st.booleans(), st.data())
def test_any_tensors_are_decoded_or_refused(
    asked: Ranked, pairs: bool, data: st.DataObject
) -> None:
    tensors = asked.pairs() if pairs else asked.torchrec()
    names = [*tensors, *asked.torchrec(), "context.", "context.x", "context.cat_3.values"]
    for name in data.draw(st.lists(st.sampled_from(names), max_size=3)):
        shape, dtype = data.draw(SHAPES), data.draw(DTYPES)
        value = data.draw(st.integers(-1, 3))
        tensors[name] = np.full(shape, value).astype(dtype)
    for name in data.draw(st.lists(st.sampled_from(names), max_size=2)):
        tensors.pop(name, None)
    message = message_of(tensors)
    with only_refusals():
        check(oip_protobuf.decode_request(message, SPEC))


def check(request: InferRequest) -> None:
    """The arrays fit together as far as codecs see to it."""
    for array in request.inputs.values():
        assert array.nbytes < 100_000
    assert request.rows >= 0
