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
    CallHead,
    harmless,
    media_type,
    own_id,
    parse_head,
)
from transports.http.problem import HttpError


@pytest.mark.parametrize(
    ("content_type", "chosen"),
    [
        (b"application/json", JSON),
        (b"Application/JSON; charset=utf-8", JSON),
        (b"application/x-www-form-urlencoded", JSON),
        (b"application/x-protobuf", PROTOBUF),
    ],
)
def test_a_known_content_type_chooses_the_codec(content_type: bytes, chosen: str) -> None:
    assert media_type({b"content-type": content_type}) == chosen


def test_nothing_said_means_json_without_a_deadline() -> None:
    assert media_type({}) == JSON
    assert parse_head({}) == CallHead(
        body_bytes=None, coding="", accepted="", timeout_s=math.inf, priority=0
    )


@pytest.mark.parametrize("value", [b"text/csv", b"", b"application/octet-stream", b"\xff"])
def test_another_content_type_is_unsupported_and_the_answer_lists_the_known(value: bytes) -> None:
    with pytest.raises(HttpError) as raised:
        media_type({b"content-type": value})
    assert raised.value.status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    assert JSON in raised.value.detail
    assert PROTOBUF in raised.value.detail


@pytest.mark.parametrize("value", [b"br", b"gzip, gzip", b"zstd", b"\xff"])
def test_another_coding_is_unsupported_and_the_answer_lists_the_known(value: bytes) -> None:
    with pytest.raises(HttpError, match="content-encoding") as raised:
        parse_head({b"content-encoding": value})
    assert raised.value.status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    assert raised.value.headers == {"accept-encoding": "gzip, deflate"}


def test_codings_are_read_of_the_body_and_for_the_answer() -> None:
    head = parse_head({b"content-encoding": b"GZip", b"accept-encoding": b"deflate"})
    assert (head.coding, head.accepted) == ("gzip", "deflate")


def test_a_priority_is_read() -> None:
    assert parse_head({b"x-request-priority": b"3"}).priority == 3


@pytest.mark.parametrize("value", [b"-1", b"1.0", b"", b"high", b"+1", b"1" * 400])
def test_a_priority_that_is_no_whole_number_is_refused_by_name(value: bytes) -> None:
    with pytest.raises(ServingError, match="x-request-priority") as raised:
        parse_head({b"x-request-priority": value})
    assert raised.value.code is Code.INVALID_REQUEST


def test_a_timeout_is_read_in_milliseconds() -> None:
    assert parse_head({b"x-request-timeout-ms": b"2.5"}).timeout_s == 0.0025


@pytest.mark.parametrize(
    "value", [b"0", b"-1", b"nan", b"inf", b"", b"1e3", b"1_000", b"+1", b" 1", b"1" * 400]
)
def test_a_timeout_that_is_no_positive_number_is_refused_by_name(value: bytes) -> None:
    with pytest.raises(ServingError, match="x-request-timeout-ms") as raised:
        parse_head({b"x-request-timeout-ms": value})
    assert raised.value.code is Code.INVALID_REQUEST


NAMES = ["content-encoding", "accept-encoding", "x-request-timeout-ms", "x-request-priority"]


@given(st.dictionaries(st.sampled_from([name.encode() for name in NAMES]), st.binary(max_size=200)))
def test_arbitrary_headers_are_understood_or_refused(headers: dict[bytes, bytes]) -> None:
    with contextlib.suppress(HttpError, ServingError):
        head = parse_head(headers)
        assert head.timeout_s > 0
        assert {head.coding, head.accepted} <= {"", "gzip", "deflate"}


@given(st.binary(max_size=300))
def test_any_request_id_becomes_a_harmless_one(given_id: bytes) -> None:
    name = own_id({b"x-request-id": given_id})
    assert 0 < len(name) <= MAX_REQUEST_ID_CHARACTERS
    assert name.isascii()
    assert name.isprintable()
    assert not set(name) & set(" \r\n\"'<>%{}\\")


def test_a_harmless_request_id_is_kept() -> None:
    assert harmless(b"job-7/a:b.c_d") == "job-7/a:b.c_d"


def test_made_up_request_ids_differ() -> None:
    assert own_id({}) != own_id({})


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_without_an_id_the_trace_names_the_request() -> None:
    trace = {b"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01".encode()}
    assert own_id(trace) == TRACE
    assert own_id({**trace, b"x-request-id": b"job-7"}) == "job-7"


@pytest.mark.parametrize("value", [b"", b"00", f"00-{TRACE[1:]}-00f067aa0ba902b7-01".encode()])
def test_a_malformed_trace_is_ignored(value: bytes) -> None:
    assert TRACE[1:] not in own_id({b"traceparent": value})
