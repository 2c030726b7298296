"""One request between HTTP/3 and ASGI, without a socket."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from tests.fixtures.raw_http3 import head
from transports.http3.bridge import Exchange, Frames, Headers, MalformedRequest, scope_of

SERVER = ("localhost", 8443)
STANDING = [(b"server", b"narsil")]
START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"X-A", b"1")]}


def make_exchange(method: str = "POST") -> Exchange:
    return Exchange(scope_of(head(method), None, SERVER), STANDING)


def body(data: bytes, more_body: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more_body}


def test_a_head_becomes_a_scope() -> None:
    headers = head("GET", "/v1/models/a%20b?x=1&y", accept="*/*")
    scope = scope_of(headers, ("127.0.0.1", 5), SERVER)
    assert scope["method"] == "GET"
    assert scope["http_version"] == "3"
    assert scope["path"] == "/v1/models/a b"
    assert scope["raw_path"] == b"/v1/models/a%20b"
    assert scope["query_string"] == b"x=1&y"
    assert scope["headers"] == [(b"host", b"localhost"), (b"accept", b"*/*")]
    assert scope["client"] == ("127.0.0.1", 5)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b":method", b"GET")],
        [(b":path", b"/")],
        [(b":method", b"GET"), (b":path", b"")],
        [(b":method", b"GET"), (b":path", b"relative")],
        [(b":method", b"GET"), (b":path", b"/\xff")],
        [(b":method", b"\xff"), (b":path", b"/")],
        [(b":method", b"CONNECT"), (b":authority", b"a:1")],
    ],
)
def test_a_head_that_is_no_request_is_malformed(headers: Headers) -> None:
    with pytest.raises(MalformedRequest):
        scope_of(headers, None, SERVER)


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=20)), max_size=8))
def test_arbitrary_heads_are_scopes_or_malformed(headers: Headers) -> None:
    base: Headers = [(b":method", b"GET"), (b":path", b"/")]
    with contextlib.suppress(MalformedRequest):
        assert scope_of(base + headers, None, SERVER)["path"].startswith("/")


@given(st.lists(st.binary(max_size=20), max_size=8), st.data())
def test_a_body_arrives_whole_however_it_is_cut_and_read(
    chunks: list[bytes], data: st.DataObject
) -> None:
    exchange = make_exchange()
    told: list[Message] = []
    for chunk in chunks:
        exchange.receive_body(chunk, ended=False)
        if data.draw(st.booleans()):
            told.append(exchange.next_message() or body(b"", True))
    exchange.receive_body(b"", ended=True)
    last = exchange.next_message()
    assert last is not None
    told.append(last)
    assert b"".join(message["body"] for message in told) == b"".join(chunks)
    assert [message["more_body"] for message in told] == [True] * (len(told) - 1) + [False]
    assert exchange.next_message() is None


def test_nothing_is_told_before_something_arrives() -> None:
    assert make_exchange().next_message() is None


def test_an_answer_becomes_frames_with_the_standing_headers_first() -> None:
    exchange = make_exchange()
    assert exchange.send(START) == Frames(
        headers=[(b":status", b"200"), (b"server", b"narsil"), (b"x-a", b"1")]
    )
    assert exchange.send(body(b"ab", more_body=True)) == Frames(data=b"ab")
    assert not exchange.answered
    assert exchange.send(body(b"c")) == Frames(data=b"c", end=True)
    assert exchange.answered


@pytest.mark.parametrize("name", [b"connection", b"Transfer-Encoding", b"keep-alive", b"upgrade"])
def test_headers_of_a_connection_are_left_out(name: bytes) -> None:
    frames = make_exchange().send({**START, "headers": [(name, b"close")]})
    assert frames is not None
    assert frames.headers == [(b":status", b"200"), *STANDING]


def test_the_answer_to_head_has_no_body() -> None:
    exchange = make_exchange("HEAD")
    exchange.send(START)
    assert exchange.send(body(b"ignored")) == Frames(end=True)


def test_after_a_disconnect_the_app_is_told_and_nothing_is_sent() -> None:
    exchange = make_exchange()
    exchange.receive_body(b"half", ended=False)
    exchange.disconnect()
    assert exchange.next_message() == {"type": "http.disconnect"}
    assert exchange.send(START) is None


def test_after_its_answer_the_app_is_told_disconnect_and_body_bytes_are_dropped() -> None:
    exchange = make_exchange()
    exchange.send(START)
    exchange.send(body(b""))
    exchange.receive_body(b"late", ended=False)
    assert exchange.next_message() == {"type": "http.disconnect"}


@pytest.mark.parametrize("messages", [[body(b"")], [START, START], [START, body(b""), body(b"")]])
def test_a_message_out_of_turn_is_a_bug_of_the_app(messages: list[Message]) -> None:
    exchange = make_exchange()
    *earlier, last = messages
    for message in earlier:
        exchange.send(message)
    with pytest.raises(RuntimeError, match="out of turn"):
        exchange.send(last)
