import pytest

from scheduler.errors import Code, ServingError
from tests.fixtures.wire import make_spec, sample, to_json
from transports.codecs.predict_json import decode_request
from transports.codecs.strict_json import parse_object


def refusal(body: bytes) -> str:
    with pytest.raises(ServingError) as refused:
        decode_request(body, make_spec())
    assert refused.value.code is Code.INVALID_REQUEST
    return refused.value.detail


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_does_not_have_are_refused_with_the_field(literal: str) -> None:
    body = b'{"float_features": [[0, 1, %s]]}' % literal.encode()
    assert 'after field "float_features"' in refusal(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "body is empty"),
        (b" \n", "body is empty"),
        (b"[]", "body is a list, expected an object"),
        (b"null", "body is null"),
        (b'"text"', 'body is "text"'),
        (b"{", "body is not JSON"),
        (b"{}{}", "body is not JSON"),
        (b"\xff\xfe", "body is not JSON"),
        (b"\xef\xbb\xbf{}", "body is not JSON"),
        (b"PK\x03\x04", "body is not JSON"),
        (b"[" * 100_000, "depth limit"),
        (b'{"a":' * 100_000, "depth limit"),
        (b"{}", "float_features is missing"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes, words: str) -> None:
    assert words in refusal(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"float_features": [], "float_features": []}', 'key "float_features" is given twice'),
        (b'{"id_list_features": {"user": [], "user": []}}', 'key "user" is given twice'),
        (b'{"id": "a", "\\u0069d": "b"}', 'key "id" is given twice'),
        (b'{"id": "a\\u003a", "id": "b"}', 'key "id" is given twice'),
        (b'{"id": ":", "id": ""}', 'key "id" is given twice'),
        (b'{"id": {"a": 1}, "id": "b"}', 'key "id" is given twice'),
        (b'{"id": %s1%s, "id": "b"}' % (b"[" * 1020, b"]" * 1020), "checked for duplicate keys"),
        (b'{"id": %s, "id": "b"}' % (b"9" * 5000), "body is not JSON"),
    ],
)
def test_a_key_given_twice_is_refused(body: bytes, words: str) -> None:
    assert words in refusal(body)


def test_a_body_with_colons_and_escapes_in_strings_is_parsed_once() -> None:
    # The standard library's parser, which names duplicates, gives up at about 1,000 levels.
    body = b'{"id": "\\\\:\\"", "deep": %s1%s}' % (b"[" * 1020, b"]" * 1020)
    assert parse_object(body)["id"] == '\\:"'


def test_a_key_given_twice_in_a_long_body_is_refused_without_its_name() -> None:
    space = b" " * (256 << 10)
    assert refusal(b'{"id": "a", "id": "b"}' + space).startswith("a key is given twice")


def test_an_object_within_a_list_is_not_taken_for_a_duplicate() -> None:
    assert parse_object(b'{"a": [{"b": 1}, {"b": 2}]}') == {"a": [{"b": 1}, {"b": 2}]}


def test_a_columnar_feature_with_two_lengths_is_refused() -> None:
    body = to_json(sample().columnar()).replace(
        b'"lengths": [1, 2]', b'"lengths": 0, "lengths": [1, 2]'
    )
    assert 'key "lengths" is given twice' in refusal(body)


def test_colons_and_escapes_in_names_are_not_taken_for_duplicates() -> None:
    features = ("a:b", 'c"d\\e', "f\u00fcg")
    bags = dict(zip(features, ([[1], []], [[2], [3]], [[], []]), strict=True))
    document = {**sample().row_wise(), "id_list_features": bags, "id": ":::"}
    request = decode_request(to_json(document), make_spec(features))
    assert request.inputs["id_list_features.values"].tolist() == [1, 2, 3]
    assert request.id == ":::"


def test_a_refusal_stays_short_however_long_the_name_sent() -> None:
    body = to_json({"x" * 1_000_000: 1})
    assert len(refusal(body)) < 300
