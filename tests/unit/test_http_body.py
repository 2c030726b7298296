"""Body reading: limits of bytes, of memory and of time, and a client that leaves."""

import asyncio
import dataclasses
import gzip
import tracemalloc
import zlib
from http import HTTPStatus
from typing import Any

import pytest
from starlette.types import Message

from scheduler.errors import Code, ServingError
from transports.http.body import Body
from transports.http.intake import BodyLimits, Intake
from transports.http.problem import HttpError

LIMITS = BodyLimits(
    max_request_bytes=8, max_json_bytes=4, max_buffered_bytes=12, body_timeout_s=60.0
)


class Wire:
    """An ASGI ``receive`` that plays ``messages``, then waits for ever."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.waiting = asyncio.Event()

    async def __call__(self) -> Message:
        if not self.messages:
            self.waiting.set()
            await asyncio.Event().wait()
        return self.messages.pop(0)


def chunk(body: bytes, more_body: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more_body}


def body_of(*messages: Message) -> Body:
    return Body(Wire(*messages), Intake(LIMITS))


async def read(
    body: Body, declared_bytes: int | None = None, json_bytes: int | None = 0, coding: str = ""
) -> bytes:
    return await body.read(declared_bytes, json_bytes, coding)


async def test_a_body_in_pieces_is_read_whole() -> None:
    body = body_of(chunk(b"ab", True), chunk(b"", True), chunk(b"cd", True), chunk(b""))
    assert await read(body) == b"abcd"
    assert body.complete


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    assert await read(body_of(chunk(b"12345678")), declared_bytes=8) == b"12345678"


async def test_a_declared_length_over_the_limit_is_refused_before_anything_is_read() -> None:
    wire = Wire(chunk(b"123456789"))
    with pytest.raises(ServingError) as raised:
        await read(Body(wire, Intake(LIMITS)), declared_bytes=9)
    assert raised.value.code is Code.PAYLOAD_TOO_LARGE
    assert raised.value.detail == "body: 9 bytes exceed the limit of 8 bytes (max_request_bytes)"
    assert len(wire.messages) == 1


async def test_an_undeclared_body_is_refused_while_it_streams() -> None:
    wire = Wire(chunk(b"12345", True), chunk(b"6789", True), chunk(b"never read", True))
    with pytest.raises(ServingError, match="9 bytes so far exceed the limit of 8 bytes"):
        await read(Body(wire, Intake(LIMITS)))
    assert len(wire.messages) == 1


async def test_the_last_piece_counts_too() -> None:
    with pytest.raises(ServingError, match="body: 9 bytes exceed"):
        await read(body_of(chunk(b"12345", True), chunk(b"6789")))


@pytest.mark.parametrize("declared_bytes", [5, None])
async def test_json_has_a_smaller_limit_and_the_refusal_says_what_takes_more(
    declared_bytes: int | None,
) -> None:
    assert await read(body_of(chunk(b"1234")), json_bytes=None) == b"1234"
    with pytest.raises(ServingError) as raised:
        await read(body_of(chunk(b"12345")), declared_bytes, json_bytes=None)
    assert raised.value.code is Code.PAYLOAD_TOO_LARGE
    assert raised.value.detail == (
        "body: 5 bytes exceed the limit of 4 bytes for JSON (max_json_bytes); "
        "a binary body may have 8 bytes (max_request_bytes)"
    )


async def test_json_over_the_limit_of_all_bodies_is_refused_by_that_one() -> None:
    with pytest.raises(ServingError, match="max_request_bytes") as raised:
        await read(body_of(), declared_bytes=9, json_bytes=None)
    assert "max_json_bytes" not in raised.value.detail


async def test_json_before_binary_data_has_the_limit_of_json() -> None:
    assert await read(body_of(chunk(b"12345678")), json_bytes=4) == b"12345678"
    with pytest.raises(ServingError, match=r"body: 5 bytes .* for JSON \(max_json_bytes\)"):
        await read(body_of(chunk(b"12345678")), json_bytes=5)


async def test_bodies_share_one_memory_and_give_it_back() -> None:
    intake = Intake(LIMITS)
    holding = Body(Wire(chunk(b"12345678")), intake)
    await read(holding)
    with pytest.raises(ServingError, match=r"limit of 12 bytes \(max_buffered_bytes\)") as raised:
        await read(refused := Body(Wire(chunk(b"1234", True), chunk(b"5")), intake))
    assert raised.value.code is Code.OVERLOADED
    refused.release()
    assert await read(Body(Wire(chunk(b"1234")), intake)) == b"1234"
    holding.release()
    assert await read(Body(Wire(chunk(b"12345678")), intake)) == b"12345678"


@pytest.mark.parametrize("pieces", [1, 3, 100])
async def test_a_packed_body_is_unpacked_as_it_arrives(pieces: int) -> None:
    content = gzip.compress(b"1234")
    size = -(-len(content) // pieces)
    chunks = [content[start : start + size] for start in range(0, len(content), size)]
    wire = Wire(*[chunk(part, more_body=True) for part in chunks], chunk(b""))
    intake = Intake(dataclasses.replace(LIMITS, max_request_bytes=100, max_buffered_bytes=100))
    body = Body(wire, intake)
    assert await read(body, declared_bytes=len(content), coding="gzip") == b"1234"


async def test_the_limit_holds_for_what_a_body_unpacks_to() -> None:
    bomb = zlib.compress(b"0" * 10_000)
    limits = BodyLimits(max_request_bytes=1000, max_json_bytes=1000, max_buffered_bytes=1000)
    assert len(bomb) < limits.max_request_bytes
    with pytest.raises(ServingError, match=r"unpacked, exceed the limit of 1000 bytes") as raised:
        await read(Body(Wire(chunk(bomb)), Intake(limits)), len(bomb), coding="deflate")
    assert raised.value.code is Code.PAYLOAD_TOO_LARGE


async def test_a_bomb_is_unpacked_no_further_than_the_limit() -> None:
    bomb = zlib.compress(b"0" * (32 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ServingError, match="max_json_bytes"):
            await read(
                Body(Wire(chunk(bomb)), Intake(BodyLimits())), json_bytes=None, coding="deflate"
            )
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 << 20


async def test_others_have_their_turn_while_a_body_is_unpacked() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    packed = zlib.compress(b"0" * (4 << 20))
    await read(Body(Wire(chunk(packed)), Intake(BodyLimits())), coding="deflate")
    counting.cancel()
    assert turns >= 16


@pytest.mark.parametrize("content", [b"", zlib.compress(b"12")[:-1], b"12", b"\0" * 8])
async def test_what_is_not_the_coding_is_refused(content: bytes) -> None:
    with pytest.raises(ServingError, match="deflate") as raised:
        await read(body_of(chunk(content)), coding="deflate")
    assert raised.value.code is Code.INVALID_REQUEST


async def test_unpacked_bytes_count_in_the_memory_of_all_bodies() -> None:
    limits = BodyLimits(max_request_bytes=1000, max_json_bytes=1000, max_buffered_bytes=1500)
    intake = Intake(limits)
    packed = zlib.compress(b"0" * 900)
    await read(Body(Wire(chunk(packed)), intake), coding="deflate")
    with pytest.raises(ServingError, match="max_buffered_bytes"):
        await read(Body(Wire(chunk(packed)), intake), coding="deflate")


async def test_closing_ends_the_reading_of_what_is_not_complete_and_of_all_to_come() -> None:
    intake, wire = Intake(LIMITS), Wire(chunk(b"1", True))
    reading = asyncio.create_task(read(Body(wire, intake)))
    await wire.waiting.wait()
    intake.close()
    with pytest.raises(ServingError, match="stopping") as raised:
        await reading
    assert raised.value.code is Code.UNAVAILABLE
    with pytest.raises(ServingError, match="stopping"):
        await read(Body(Wire(chunk(b"1")), intake))


async def test_a_client_that_leaves_mid_body_is_a_cancelled_request() -> None:
    with pytest.raises(ServingError) as raised:
        await read(body_of(chunk(b"1", True), {"type": "http.disconnect"}))
    assert raised.value.code is Code.CANCELLED


async def test_a_body_that_does_not_arrive_in_time_is_a_408() -> None:
    limits = dataclasses.replace(LIMITS, body_timeout_s=0.01)
    with pytest.raises(HttpError, match="body_timeout_s") as raised:
        await read(Body(Wire(chunk(b"1", True)), Intake(limits)))
    assert raised.value.status is HTTPStatus.REQUEST_TIMEOUT


async def test_draining_ends_with_the_body() -> None:
    body = body_of(chunk(b"123456", True), chunk(b"78"), chunk(b"the next request"))
    await body.drain()
    assert body.complete


async def test_draining_gives_up_on_a_body_without_end() -> None:
    wire = Wire(*[chunk(b"1234", True)] * 100)
    await Body(wire, Intake(LIMITS)).drain()
    assert len(wire.messages) == 96


async def test_draining_ends_when_the_client_leaves() -> None:
    body = body_of(chunk(b"1", True), {"type": "http.disconnect"})
    await body.drain()
    assert not body.complete


async def test_what_comes_faster_than_it_may_is_not_taken_yet() -> None:
    second = chunk(b"5678")
    wire = Wire(chunk(b"1234", True), second)
    reading = asyncio.create_task(Body(wire, Intake(LIMITS)).pieces(8, 0, bytes_per_s=1e-3))
    for _ in range(10):
        await asyncio.sleep(0)
    assert wire.messages == [second]
    reading.cancel()
    wire = Wire(chunk(b"1234", True), second)
    assert await Body(wire, Intake(LIMITS)).pieces(8, 0, bytes_per_s=1e9) == [b"1234", b"5678"]
