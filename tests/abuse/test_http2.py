"""HTTP/2, against the gRPC server: floods of frames, and readers that stall."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.abuse.http2 import (
    CALL,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    call,
    frame,
    http2,
    literal,
    settings,
)
from tests.abuse.victim import FAKE, MIB, memory_bytes, others_are_served, victim
from tests.fixtures.requests import as_protobuf, random_request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

MESSAGE = as_protobuf(random_request(FAKE.spec, 1, seed=1))
RESET = CANCEL.to_bytes(4, "big")
RESETS = b"".join(
    frame(HEADERS, END_HEADERS, stream, CALL) + frame(RST_STREAM, 0, stream, RESET)
    for stream in range(1, 60_001, 2)
)
ENDLESS_HEAD = frame(HEADERS, 0, 1, CALL) + 2000 * frame(
    CONTINUATION, 0, 1, 64 * literal(b"x" * 100, b"y" * 100)
)
EMPTY_DATA = frame(HEADERS, END_HEADERS, 1, CALL) + 500_000 * frame(DATA, 0, 1)

FLOODS = {
    "rapid reset": RESETS,
    "pings": 300_000 * frame(PING, 0, 0, b"12345678"),
    "settings": 300_000 * settings(),
    "empty data frames": EMPTY_DATA,
    "window updates": 300_000 * frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
    "unknown frames": 300_000 * frame(0xFA, 0, 0),
    "settings acknowledged unasked": 300_000 * frame(SETTINGS, 1, 0),
    "a head without end": ENDLESS_HEAD,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_a_flood_is_bounded_and_others_are_served(flood: bytes, tmp_path: Path) -> None:
    with victim(tmp_path) as process:
        before = memory_bytes(process)
        async with AsyncExitStack() as stack:
            floods = []
            for _ in range(4):
                attacker = await stack.enter_async_context(http2(process.urls["grpc"]))
                attacker.stop_reading()
                floods.append(asyncio.create_task(attacker.flood(flood)))
            await others_are_served(process)
            await asyncio.wait(floods, timeout=10)
            await others_are_served(process)
            assert memory_bytes(process) - before < 100 * MIB
            for task in floods:
                task.cancel()
        assert "Traceback" not in process.log


async def test_readers_that_give_no_window_hold_only_themselves_up(tmp_path: Path) -> None:
    calls = b"".join(call(stream, MESSAGE) for stream in range(1, 2001, 2))
    with victim(tmp_path) as process:
        before = memory_bytes(process)
        async with AsyncExitStack() as stack:
            for _ in range(8):
                connecting = http2(process.urls["grpc"], settings(initial_window_size=0))
                stalled = await stack.enter_async_context(connecting)
                await stalled.flood(calls)
            await others_are_served(process)
            assert memory_bytes(process) - before < 250 * MIB
        await others_are_served(process)
