"""The headers of a predict request: what is understood, what is refused by name."""

import contextlib
import math
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import Code, ServingError
from transports.http.head import (
    JSON,
    MAX_REQUEST_ID_CHARACTERS,
    PROTOBUF,
    parse_head,
    request_id,
)
from transports.http.problem import HttpError


@pytest.mark.parametrize(
    ("content_type", "media_type"),
    [
        (b"application/json", JSON),
        (b"Application/JSON; charset=utf-8", JSON),
        (b"application/x-www-form-urlencoded", JSON),
        (b"application/x-protobuf", PROTOBUF),
    ],
)
def test_a_known_content_type_chooses_the_codec(content_type: bytes, media_type: str) -> None:
    assert parse_head({b"content-type": content_type}).media_type == media_type


def test_nothing_said_means_json_without_a_deadline() -> None:
    head = parse_head({})
    assert (head.media_type, head.body_bytes, head.timeout_s) == (JSON, None, math.inf)


@pytest.mark.parametrize("value", [b"text/csv", b"", b"application/octet-stream", b"\xff"])
def test_another_content_type_is_unsupported_and_the_answer_lists_the_known(value: bytes) -> None:
    with pytest.raises(HttpError) as raised:
        parse_head({b"content-type": value})
    assert raised.value.status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    assert JSON in raised.value.detail
    assert PROTOBUF in raised.value.detail


def test_a_compressed_body_is_unsupported() -> None:
    with pytest.raises(HttpError, match="content-encoding: 'gzip'"):
        parse_head({b"content-encoding": b"gzip"})


def test_a_timeout_is_read_in_milliseconds() -> None:
    assert parse_head({b"x-request-timeout-ms": b"2.5"}).timeout_s == 0.0025


@pytest.mark.parametrize(
    "value", [b"0", b"-1", b"nan", b"inf", b"", b"1e3", b"1_000", b"+1", b" 1", b"1" * 400]
)
def test_a_timeout_that_is_no_positive_number_is_refused_by_name(value: bytes) -> None:
    with pytest.raises(ServingError, match="x-request-timeout-ms") as raised:
        parse_head({b"x-request-timeout-ms": value})
    assert raised.value.code is Code.INVALID_REQUEST


@given(
    st.dictionaries(
        st.sampled_from([b"content-type", b"content-encoding", b"x-request-timeout-ms"]),
        st.binary(max_size=200),
    )
)
def test_arbitrary_headers_are_understood_or_refused(headers: dict[bytes, bytes]) -> None:
    with contextlib.suppress(HttpError, ServingError):
        assert parse_head(headers).timeout_s > 0


@given(st.binary(max_size=300))
def test_any_request_id_becomes_a_harmless_one(given_id: bytes) -> None:
    name = request_id(given_id)
    assert 0 < len(name) <= MAX_REQUEST_ID_CHARACTERS
    assert name.isascii()
    assert name.isprintable()
    assert not set(name) & set(" \r\n\"'<>%{}\\")


def test_a_harmless_request_id_is_kept() -> None:
    assert request_id(b"job-7/a:b.c_d") == "job-7/a:b.c_d"


def test_made_up_request_ids_differ() -> None:
    assert request_id(b"") != request_id(b"")
