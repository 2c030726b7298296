"""Inference without ASGI between, and by the ASGI app: the same bytes for the same requests."""

import gzip
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.fixtures.raw_http import RawConnection, post, raw
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import JSON, PROTOBUF, json_body, protobuf_body
from transports.http.exchange import Exchange
from transports.http.page_cycle import PageCycle
from transports.http.server import HttpOptions, HttpTransport

# What a browser says makes it the app's, which may have something to add (CORS).
BY_ASGI = "origin: https://shop.example"
NAME = "x-request-id: a-request"
SCORES = [0.25, 0.5]
OF_PROTOBUF = f"content-type: {PROTOBUF}"
MODEL = "/v1/models/dlrm/predict"
LONG = json_body([0.5] * 2000)
CHUNKED = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\n%b\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(body: bytes, *headers: str) -> bytes:
    """Return a POST that does not say how long it is."""
    return CHUNKED % "\r\n".join(headers).encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def unversioned(content: bytes) -> bytes:
    """Return a request of HTTP/1.0."""
    return content.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1)


REQUESTS: dict[str, Callable[..., bytes]] = {
    "json": lambda *more: post(json_body(SCORES), *more),
    "protobuf": lambda *more: post(protobuf_body(SCORES), OF_PROTOBUF, *more, path=MODEL),
    "http 1.0": lambda *more: unversioned(post(json_body(SCORES), *more)),
    "the last": lambda *more: post(json_body(SCORES), "connection: close", *more),
    "a query": lambda *more: post(json_body(SCORES), *more, path="/v1/predict?a=b"),
    "an escaped path": lambda *more: post(json_body(SCORES), *more, path="/v1/%70redict"),
    "chunked": lambda *more: chunked(json_body(SCORES), *more),
    "packed": lambda *more: post(gzip.compress(json_body(SCORES)), "content-encoding: gzip", *more),
    "an answer packed": lambda *more: post(LONG, "accept-encoding: gzip", *more),
    "a deadline": lambda *more: post(json_body(SCORES), "x-request-timeout-ms: 60000", *more),
    "open inference": lambda *more: post(b"{}", *more, path="/v2/models/dlrm/infer"),
    "no model": lambda *more: post(b"{}", *more, path="/v1/models/other/predict"),
    "no version": lambda *more: post(b"{}", *more, path="/v1/models/dlrm/versions/7/predict"),
    "nothing": lambda *more: post(b"", *more),
    "not json": lambda *more: post(b"{", *more),
    "no such type": lambda *more: post(b"{}", "content-type: text/plain", *more),
    "no such coding": lambda *more: post(b"{}", "content-encoding: br", *more),
    "a false deadline": lambda *more: post(b"{}", "x-request-timeout-ms: soon", *more),
    "too large": lambda *more: post(bytes(100_001), OF_PROTOBUF, *more),
    "too large unpacked": lambda *more: post(
        gzip.compress(bytes(200_000)), "content-encoding: gzip", OF_PROTOBUF, *more
    ),
}


@asynccontextmanager
async def connected(engine: StubEngine) -> AsyncIterator[tuple[RawConnection, HttpTransport]]:
    """Yield a connection to a server, and the server."""
    transport = HttpTransport(HttpOptions(port=0, max_request_bytes=100_000))
    (url,) = await transport.start(engine)
    try:
        async with raw(url) as connection:
            yield connection, transport
    finally:
        await transport.stop(60.0)


async def answer(engine: StubEngine, content: bytes) -> tuple[bytes, type[object] | None]:
    """Return all that ``content`` is answered with, and what has answered it, if it is known."""
    async with connected(engine) as (connection, transport):
        await connection.send(content)
        head = await connection.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        body = await connection.reader.readexactly(int(length[1]))
        assert transport._listener is not None
        # None of a connection that the server has closed.
        kinds = [type(each._latest) for each in transport._listener._connections()]
        if b"connection: close" in head:
            assert await connection.closed()
    return re.sub(rb"\r\ndate: [^\r]*", b"", head) + body, next(iter(kinds), None)


@pytest.mark.parametrize("asked", REQUESTS)
async def test_an_answer_is_the_same_with_asgi_between_and_without(asked: str) -> None:
    make, engine = REQUESTS[asked], StubEngine()
    plain, how = await answer(engine, make(NAME))
    by_asgi, by_app = await answer(engine, make(NAME, BY_ASGI))
    assert plain == by_asgi
    assert b"x-request-id: a-request\r\n" in plain
    assert how in {Exchange, None}
    assert by_app in {PageCycle, None}
    told, told_by_app = engine.watcher.records
    for field in ("code", "detail", "rows", "http_status", "bytes_in", "bytes_out", "operation"):
        assert getattr(told, field) == getattr(told_by_app, field), field


async def test_both_ways_are_taken() -> None:
    engine = StubEngine()
    assert (await answer(engine, post(json_body(SCORES))))[1] is Exchange
    assert (await answer(engine, chunked(json_body(SCORES), NAME)))[1] is Exchange
    assert (await answer(engine, post(json_body(SCORES), BY_ASGI)))[1] is PageCycle
    assert (await answer(engine, b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"))[1] is PageCycle


async def test_a_bug_of_ours_has_the_same_answer_on_both_ways_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = StubEngine()
    engine.failure = lambda: RuntimeError("a bug in a test")
    with caplog.at_level(logging.ERROR):
        plain, _ = await answer(engine, post(json_body(SCORES), NAME))
        assert "a bug in a test" in caplog.text
        by_asgi, _ = await answer(engine, post(json_body(SCORES), NAME, BY_ASGI))
    assert plain == by_asgi
    assert plain.startswith(b"HTTP/1.1 500 ")
    assert b"a bug in a test" not in plain


async def test_requests_of_both_kinds_are_answered_in_their_order() -> None:
    engine = StubEngine()
    engine.gate.clear()
    page = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    async with connected(engine) as (connection, _):
        await connection.send(
            post(json_body([1.0])), page, post(json_body([2.0]), BY_ASGI), page,
            post(json_body([3.0])),
        )  # fmt: skip
        await engine.entered.wait()
        engine.gate.set()
        bodies = [(await connection.answer()).body for _ in range(5)]
    assert [b"predictions" in body for body in bodies] == [True, False, True, False, True]
    assert [each for each in (b"1.0", b"2.0", b"3.0") if each in bodies[2]] == [b"2.0"]


async def test_content_types_of_an_answer_are_those_of_its_request() -> None:
    engine = StubEngine()
    async with connected(engine) as (connection, _):
        for kind, body in ((JSON, json_body(SCORES)), (PROTOBUF, protobuf_body(SCORES))):
            await connection.send(post(body, f"content-type: {kind}"))
            assert (await connection.answer()).headers["content-type"] == kind
