"""HTTP/1.1: slow, tiny, endless and unread."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from scheduler.types import InferRequest
from tests.abuse.victim import FAKE, MIB, memory_bytes, others_are_served, victim
from tests.fixtures.oip_http import INFER, binary_body
from tests.fixtures.raw_http import RawConnection, post, raw
from tests.fixtures.requests import DENSE, LENGTHS, VALUES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

CHUNKED = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
WRITE_BYTES = 64 * 1024


async def send_all(connection: RawConnection, content: bytes) -> None:
    """Send until done or cut off; read nothing."""
    try:
        for start in range(0, len(content), WRITE_BYTES):
            await connection.send(content[start : start + WRITE_BYTES])
    except ConnectionError:
        return


async def test_slow_heads_hold_nobody_up_and_are_cut_when_their_time_is_over(
    tmp_path: Path,
) -> None:
    with victim(tmp_path, "--http-head-timeout-s=2") as process:
        before = memory_bytes(process)
        async with AsyncExitStack() as stack:
            slow = [await stack.enter_async_context(raw(process.urls["http"])) for _ in range(300)]
            for connection in slow:
                await connection.send(b"POST /v1/pre")
            await others_are_served(process)
            assert memory_bytes(process) - before < 30 * MIB
            async with asyncio.timeout(60):
                await asyncio.gather(*(connection.reader.read() for connection in slow))


async def test_a_million_tiny_chunks_take_no_memory_and_others_their_turn(tmp_path: Path) -> None:
    with victim(tmp_path) as process:
        before = memory_bytes(process)
        async with raw(process.urls["http"]) as connection:
            await connection.send(CHUNKED)
            sending = asyncio.create_task(send_all(connection, b"1\r\n \r\n" * 1_000_000))
            await others_are_served(process)
            await sending
            assert memory_bytes(process) - before < 80 * MIB
            await connection.send(b"0\r\n\r\n")
            assert (await connection.answer()).status == 400
        await others_are_served(process)


async def test_endless_pipelining_without_reading_is_left_unread(tmp_path: Path) -> None:
    with victim(tmp_path) as process:
        before = memory_bytes(process)
        async with AsyncExitStack() as stack:
            urls = [process.urls["http"]] * 20
            sending = []
            for url in urls:
                connection = await stack.enter_async_context(raw(url))
                flood = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 500_000
                sending.append(asyncio.create_task(send_all(connection, flood)))
            await asyncio.wait(sending, timeout=5)
            assert memory_bytes(process) - before < 100 * MIB
            await others_are_served(process)
            for task in sending:
                task.cancel()


def large(rows: int) -> bytes:
    """Return a binary request whose answer, in JSON, is about as large."""
    inputs = {
        DENSE: np.random.default_rng(1).random((rows, 3), np.float32),
        LENGTHS: np.zeros((2, rows), np.int32),
        VALUES: np.zeros(0, np.int32),
    }
    headers, body = binary_body(InferRequest("fake", rows, inputs).inputs)
    return post(body, *(f"{name}: {value}" for name, value in headers.items()), path=INFER)


async def test_answers_nobody_reads_are_bounded_over_all_connections(tmp_path: Path) -> None:
    """24 answers of 18 MiB each would be 430 MiB; 64 MiB may wait."""
    rows = 2_000_000
    sizes = [f"--backend-max-batch-rows={rows}", f"--scheduler-max-queue-rows={2 * rows}"]
    limits = [*sizes, f"--http-max-unsent-bytes={64 * MIB}"]
    assert FAKE.spec.max_batch_rows < rows
    with victim(tmp_path, *limits) as process:
        request = large(rows)
        async with raw(process.urls["http"]) as reader:
            await reader.send(request)
            answer = await reader.answer()
            assert answer.status == 200
            assert len(answer.body) > 10 * MIB
        before = memory_bytes(process)
        async with AsyncExitStack() as stack:
            for _ in range(24):
                stalled = await stack.enter_async_context(raw(process.urls["http"]))
                # What the client's side does not take stays at the server's.
                stalled.reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio's own
                await stalled.send(request)
                await others_are_served(process)  # behind it, so it has been answered
            assert memory_bytes(process) - before < 200 * MIB
        assert "max_unsent_bytes" in process.log
