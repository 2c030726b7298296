"""gRPC connections: pings that keep them open, pings that close them, and how they end."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from tests.fixtures.grpc_calls import grpc_serving

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1
NO_ERROR, ENHANCE_YOUR_CALM = 0, 11


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    payload: bytes


class Http2:
    """One HTTP/2 connection by hand: frames out, frames in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, kind: int, payload: bytes = b"", flags: int = 0) -> None:
        size = struct.pack(">I", len(payload))[1:]
        self._writer.write(size + bytes([kind, flags]) + bytes(4) + payload)

    async def until(self, *kinds: int) -> Frame:
        """Return the next frame of one of ``kinds``, acknowledging what asks for it."""
        while True:
            head = await self._reader.readexactly(9)
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] in (SETTINGS, PING) and not head[4] & ACK:
                self.send(head[3], payload if head[3] == PING else b"", flags=ACK)
            if head[3] in kinds:
                return Frame(head[3], head[4], payload)


@contextlib.asynccontextmanager
async def http2(port: int) -> AsyncIterator[Http2]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE)
    connection = Http2(reader, writer)
    connection.send(SETTINGS)
    try:
        yield connection
    finally:
        writer.close()


def error_in(goaway: Frame) -> int:
    return int.from_bytes(goaway.payload[4:8], "big")


async def test_a_client_is_told_to_go_away_when_the_server_stops() -> None:
    async with grpc_serving() as served:
        async with http2(served.client.port) as connection:
            await connection.until(SETTINGS)
            stopping = asyncio.create_task(served.transport.stop(grace_s=600))
            assert error_in(await connection.until(GOAWAY)) == NO_ERROR
        await stopping


async def test_a_client_that_pings_without_end_is_cut_and_others_are_served() -> None:
    async with grpc_serving() as served, http2(served.client.port) as flooding:
        served.serving.gate.open()
        await flooding.until(SETTINGS)
        answer = Frame(PING, ACK, b"")
        while answer.kind == PING:
            flooding.send(PING, bytes(8))
            answer = await flooding.until(PING, GOAWAY)
        assert error_in(answer) == ENHANCE_YOUR_CALM
        assert await served.client.predict()


async def test_a_ping_is_answered() -> None:
    async with grpc_serving() as served, http2(served.client.port) as connection:
        connection.send(PING, b"narsil!!")
        answer = await connection.until(PING)
        assert (answer.flags, answer.payload) == (ACK, b"narsil!!")


def test_grpcio_knows_the_arguments_that_bound_pings() -> None:
    # It takes any name, and one that it does not know changes nothing.
    names = [
        b"grpc.http2.min_ping_interval_without_data_ms",
        b"grpc.keepalive_permit_without_calls",
    ]
    (library,) = (Path(grpc.__file__).parent / "_cython").glob("cygrpc*.so")
    content = library.read_bytes()
    assert [name for name in names if name not in content] == []


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_an_idle_client_that_pings_every_10_seconds_stays_connected() -> None:
    pings = [
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with grpc_serving() as served:
        target = f"127.0.0.1:{served.client.port}"
        async with grpc.aio.insecure_channel(target, pings) as channel:
            await channel.channel_ready()
            # The fourth ping would be the one too many.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(65):
                    await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
