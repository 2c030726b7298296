"""Bytes that are not HTTP, behind or within requests that are: those are answered all the same."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from scheduler.errors import Code
from tests.fixtures.raw_http import RawConnection, post, raw
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import http_served, json_body, problem


@pytest.fixture
def engine() -> StubEngine:
    return StubEngine()


@pytest.fixture
async def connection(engine: StubEngine) -> AsyncIterator[RawConnection]:
    async with http_served(engine) as url, raw(url) as opened:
        yield opened


@pytest.mark.parametrize(
    "junk", [b"junk\r\n\r\n", b"CONNECT a:80 HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /" + b"x" * 70_000]
)
async def test_requests_before_junk_are_answered_and_the_connection_closed(
    engine: StubEngine, connection: RawConnection, junk: bytes
) -> None:
    engine.gate.clear()
    await connection.send(post(json_body([1.0])), post(json_body([2.0])), junk)
    await engine.entered.wait()
    engine.gate.set()
    assert (await connection.answer()).status == 200
    last = await connection.answer()
    assert (last.status, last.headers["connection"]) == (200, "close")
    assert await connection.closed()


@pytest.mark.parametrize(
    "broken",
    [
        b"transfer-encoding: xchunked\r\n\r\n{}",
        b"transfer-encoding: chunked\r\n\r\nzz\r\n{}",
        b"transfer-encoding: chunked\r\n\r\n1\r\n{}}",
    ],
)
async def test_a_body_that_is_not_http_is_a_400_and_the_requests_before_are_answered(
    engine: StubEngine, connection: RawConnection, broken: bytes
) -> None:
    engine.gate.clear()
    head = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\n"
    await connection.send(post(json_body([1.0])), head, broken)
    await engine.entered.wait()
    engine.gate.set()
    assert (await connection.answer()).status == 200
    answer = await connection.answer()
    problem(answer.body, 400)
    assert answer.headers["connection"] == "close"
    assert await connection.closed()
    records = await engine.watcher.wait_for(2)
    assert [record.code for record in records] == [None, Code.INVALID_REQUEST]


@pytest.mark.parametrize("length", [b"content-length: 10\r\n", b""])
async def test_a_body_longer_than_said_is_a_400_for_what_was_said(
    connection: RawConnection, length: bytes
) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\n"
    await connection.send(head, length, b"\r\n", json_body([0.5]))
    problem((await connection.answer()).body, 400)
    assert await connection.closed()


async def test_a_broken_body_of_a_request_already_answered_closes_the_connection(
    connection: RawConnection,
) -> None:
    head = b"POST /nope HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    await connection.send(head)
    problem((await connection.answer()).body, 404)
    await connection.send(b"zz\r\n")
    assert await connection.closed()


async def test_a_request_is_answered_though_the_head_of_the_next_is_late(
    engine: StubEngine,
) -> None:
    engine.gate.clear()
    async with http_served(engine, head_timeout_s=0.05) as url, raw(url) as connection:
        await connection.send(post(json_body([0.5])), b"GET /livez HT")
        await engine.entered.wait()
        await asyncio.sleep(0.1)
        engine.gate.set()
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await connection.closed()
