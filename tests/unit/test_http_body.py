"""Body reading: limits of bytes and time, and a client that leaves."""

import asyncio
import dataclasses
from http import HTTPStatus
from typing import Any

import pytest
from starlette.types import Message

from scheduler.errors import Code, ServingError
from transports.http.body import Body, BodyLimits
from transports.http.problem import HttpError

LIMITS = BodyLimits(max_request_bytes=8, timeout_s=60.0)


class Wire:
    """An ASGI ``receive`` that plays ``messages``, then waits for ever."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)

    async def __call__(self) -> Message:
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop(0)


def chunk(body: bytes, more_body: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more_body}


async def test_a_body_in_pieces_is_read_whole() -> None:
    body = Body(Wire(chunk(b"ab", True), chunk(b"", True), chunk(b"cd", True), chunk(b"")), LIMITS)
    assert await body.read(None) == b"abcd"
    assert body.complete


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    assert await Body(Wire(chunk(b"12345678")), LIMITS).read(8) == b"12345678"


async def test_a_declared_length_over_the_limit_is_refused_before_anything_is_read() -> None:
    wire = Wire(chunk(b"123456789"))
    with pytest.raises(ServingError) as raised:
        await Body(wire, LIMITS).read(9)
    assert raised.value.code is Code.PAYLOAD_TOO_LARGE
    assert raised.value.detail == "body: 9 bytes exceed the limit of 8 bytes (max_request_bytes)"
    assert len(wire.messages) == 1


async def test_an_undeclared_body_is_refused_while_it_streams() -> None:
    wire = Wire(chunk(b"12345", True), chunk(b"6789", True), chunk(b"never read", True))
    with pytest.raises(ServingError, match="9 bytes so far exceed the limit of 8 bytes"):
        await Body(wire, LIMITS).read(None)
    assert len(wire.messages) == 1


async def test_the_last_piece_counts_too() -> None:
    with pytest.raises(ServingError, match="body: 9 bytes exceed"):
        await Body(Wire(chunk(b"12345", True), chunk(b"6789")), LIMITS).read(None)


async def test_a_client_that_leaves_mid_body_is_a_cancelled_request() -> None:
    with pytest.raises(ServingError) as raised:
        await Body(Wire(chunk(b"1", True), {"type": "http.disconnect"}), LIMITS).read(None)
    assert raised.value.code is Code.CANCELLED


async def test_a_body_that_does_not_arrive_in_time_is_a_408() -> None:
    limits = dataclasses.replace(LIMITS, timeout_s=0.01)
    with pytest.raises(HttpError, match="body_timeout_s") as raised:
        await Body(Wire(chunk(b"1", True)), limits).read(None)
    assert raised.value.status is HTTPStatus.REQUEST_TIMEOUT


async def test_draining_ends_with_the_body() -> None:
    body = Body(Wire(chunk(b"123456", True), chunk(b"78"), chunk(b"the next request")), LIMITS)
    await body.drain()
    assert body.complete


async def test_draining_gives_up_on_a_body_without_end() -> None:
    wire = Wire(*[chunk(b"1234", True)] * 100)
    await Body(wire, LIMITS).drain()
    assert len(wire.messages) == 96


async def test_draining_ends_when_the_client_leaves() -> None:
    body = Body(Wire(chunk(b"1", True), {"type": "http.disconnect"}), LIMITS)
    await body.drain()
    assert not body.complete
