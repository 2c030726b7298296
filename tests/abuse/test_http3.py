"""HTTP/3: floods of streams and of resets, and readers that stall."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from aioquic.h3.connection import ErrorCode
from aioquic.quic.events import ConnectionTerminated

from tests.abuse.victim import MIB, memory_bytes, others_are_served, victim
from tests.e2e.clients import served_by
from tests.e2e.process import Process
from tests.fixtures.raw_http3 import RawClient, head, raw_client_to
from transports.proto.predictor_pb2 import PredictionRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

CLIENTS = 8
# What aioquic lets a client have open at once.
STREAMS = 128


@asynccontextmanager
async def attackers(
    process: Process, count: int = CLIENTS, window_bytes: int | None = None
) -> AsyncIterator[list[RawClient]]:
    """Connect ``count`` clients."""
    port = urlsplit(process.urls["http3"]).port or 0
    certificate = served_by(process.urls, process.folder).ca
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(raw_client_to(port, certificate, window_bytes))
            for _ in range(count)
        ]


async def test_streams_without_an_end_hold_little_and_nobody_up(tmp_path: Path) -> None:
    with victim(tmp_path) as process:
        before = memory_bytes(process)
        async with attackers(process) as clients:
            for client in clients:
                for _ in range(STREAMS):
                    client.request(head(content_type="application/json"), b"{", end=False)
            await others_are_served(process)
            assert memory_bytes(process) - before < 60 * MIB


async def test_a_flood_of_resets_leaves_nothing_behind(tmp_path: Path) -> None:
    with victim(tmp_path) as process:
        before = memory_bytes(process)
        async with attackers(process, count=2) as clients:
            for _ in range(100):
                for client in clients:
                    for _ in range(20):
                        stream = client.request(head(), b"{", end=False)
                        client.quic.reset_stream(stream, ErrorCode.H3_REQUEST_CANCELLED)
                    client.transmit()
                await asyncio.sleep(0)
            await others_are_served(process)
            assert memory_bytes(process) - before < 60 * MIB
        assert "Traceback" not in process.log


async def test_a_million_frames_of_nothing_cost_their_connection_only(tmp_path: Path) -> None:
    with victim(tmp_path) as process:
        before = memory_bytes(process)
        async with attackers(process, count=1) as (client,):
            stream = client.request(head(), b"", end=False)
            client.quic.send_stream_data(stream, b"\0\0" * 1_000_000)  # DATA frames of no bytes
            client.transmit()
            for _ in range(3):
                await others_are_served(process)
            assert memory_bytes(process) - before < 60 * MIB


def many_rows(rows: int) -> bytes:
    """Return a request of ``rows`` rows without ids; its answer has 4 bytes a row."""
    message = PredictionRequest(batch_size=rows)
    message.float_features.num_features = 3
    message.float_features.values = np.ones((rows, 3), np.float32).tobytes()
    message.id_list_features.num_features = 2
    message.id_list_features.lengths = np.zeros(2 * rows, np.int32).tobytes()
    return message.SerializeToString()


async def test_answers_that_get_no_window_are_bounded_over_all_connections(tmp_path: Path) -> None:
    """4 times 3 answers of 128 KiB are 1.5 MiB; 1 MiB may wait."""
    rows = 32_768
    sizes = [f"--backend-max-batch-rows={rows}", "--scheduler-max-queue-rows=1000000"]
    limits = [*sizes, f"--http3-max-unsent-bytes={MIB}"]
    body = many_rows(rows)
    with victim(tmp_path, *limits) as process:
        async with attackers(process, count=4, window_bytes=1024) as clients:
            for client in clients:
                for _ in range(3):
                    client.request(head(content_type="application/x-protobuf"), body)
            # Those that owe most are closed, which their clients hear of.
            cut = {asyncio.create_task(client.wait_for(ConnectionTerminated)) for client in clients}
            done, waiting = await asyncio.wait(cut, return_when=asyncio.FIRST_COMPLETED)
            assert done.pop().result().error_code == ErrorCode.H3_EXCESSIVE_LOAD
            await others_are_served(process)
            for task in waiting:
                task.cancel()
        assert "max_unsent_bytes" in process.log
