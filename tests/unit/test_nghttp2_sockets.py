"""The engine on any stream socket: TLS with ALPN, Unix domain sockets, several addresses."""

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from scheduler.errors import ServingError
from tests.fixtures.raw_grpc import Answer, framed, head, raw_grpc
from transports.grpc.methods import Arrival, Methods, Reply, Send, Stream
from transports.grpc.nghttp2 import limits
from transports.grpc.nghttp2.server import Nghttp2Server
from transports.grpc.options import GrpcOptions
from transports.http3.certificate import development_certificate
from transports.tls import TlsFiles

ECHO, STREAM = "/test.Echo/Echo", "/test.Echo/Stream"


async def echo(body: bytes, arrival: Arrival) -> Reply:
    """Answer with the request."""
    del arrival
    return Reply(grpc.StatusCode.OK, body)


def refused(arrival: Arrival, failure: ServingError) -> Reply:
    """Refuse."""
    del arrival
    return Reply(grpc.StatusCode.UNKNOWN, detail=failure.detail)


@asynccontextmanager
async def echoing(
    bound: Sequence[socket.socket],
    tls: ssl.SSLContext | None = None,
    stream: Stream | None = None,
) -> AsyncIterator[Nghttp2Server]:
    """Serve ``echo`` and perhaps a ``stream`` on ``bound``."""
    streams = {STREAM: stream} if stream else {}
    server = Nghttp2Server(GrpcOptions(), Methods({ECHO: echo}, streams, refused))
    await server.serve(bound, tls)
    yield server
    await server.stop(0, 1, lambda: None)


async def answer(channel: grpc.aio.Channel, body: bytes) -> bytes:
    """Return what the server makes of ``body``."""
    async with channel:
        answered: bytes = await channel.unary_unary(ECHO)(body)
    return answered


async def test_a_unix_socket_serves(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.setblocking(False)
    bound.bind(str(path))
    async with echoing([bound]):
        assert await answer(grpc.aio.insecure_channel(f"unix:{path}"), b"x") == b"x"


def free() -> socket.socket:
    """Return a socket bound to a free port of 127.0.0.1."""
    bound = socket.socket()
    bound.setblocking(False)
    bound.bind(("127.0.0.1", 0))
    return bound


async def test_several_sockets_serve() -> None:
    bound = [free(), free()]
    ports = [each.getsockname()[1] for each in bound]
    async with echoing(bound):
        for port in ports:
            assert await answer(grpc.aio.insecure_channel(f"127.0.0.1:{port}"), b"y") == b"y"


def identity(certificates: Path) -> TlsFiles:
    """Return the session's certificate."""
    return development_certificate(certificates, datetime.datetime.now(datetime.UTC))


def server_tls(files: TlsFiles) -> ssl.SSLContext:
    """Return a server's context that offers HTTP/2 alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.private_key)
    context.set_alpn_protocols(["h2"])
    return context


async def test_tls_serves_clients_that_ask_for_http2(certificates: Path) -> None:
    files, bound = identity(certificates), free()
    port = bound.getsockname()[1]
    trusting = grpc.ssl_channel_credentials(files.certificate.read_bytes())
    async with echoing([bound], server_tls(files)):
        channel = grpc.aio.secure_channel(f"localhost:{port}", trusting)
        assert await answer(channel, bytes(300_000)) == bytes(300_000)


async def test_tls_without_http2_is_closed(certificates: Path) -> None:
    files, bound = identity(certificates), free()
    trusting = ssl.create_default_context(cafile=str(files.certificate))
    async with echoing([bound], server_tls(files)):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", bound.getsockname()[1], ssl=trusting, server_hostname="localhost"
        )
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("size_bytes", [0, 1, 5, 16_384, 4_000_000])
async def test_messages_of_any_size_come_back_as_they_are(size_bytes: int) -> None:
    bound = free()
    async with echoing([bound]):
        options = [("grpc.max_receive_message_length", -1)]
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{bound.getsockname()[1]}", options)
        body = bytes(range(256)) * (size_bytes // 256 + 1)
        assert await answer(channel, body[:size_bytes]) == body[:size_bytes]


async def test_a_stop_first_announces_itself_and_serves_what_is_on_the_wire() -> None:
    bound = free()
    async with echoing([bound]) as server, raw_grpc(bound.getsockname()[1]) as raw:
        assert (await raw.answer(raw.ask(head(ECHO), framed(b"1")))).status == 0
        held = asyncio.Event()
        stopping = asyncio.create_task(server.stop(0.2, 5, held.set))
        await asyncio.sleep(0)
        # The client has not read the GOAWAY yet.
        assert (await raw.answer(raw.ask(head(ECHO), framed(b"2")))).body == framed(b"2")
        await raw.ended()
        assert raw.goaways[0].last_stream_id == 2**31 - 1
        assert held.is_set()
        await stopping


async def test_a_stop_does_not_wait_for_a_client_that_does_not_read() -> None:
    bound = free()
    async with echoing([bound]) as server, raw_grpc(bound.getsockname()[1], window_bytes=0) as raw:
        stream = raw.ask(head(ECHO), framed(b"1"))
        await raw.receive()
        async with asyncio.timeout(60):
            await server.stop(0, 0.05, lambda: None)
        assert not raw.answers.get(stream, Answer()).closed


async def test_a_stream_that_is_not_read_is_sent_no_more_than_its_window() -> None:
    read, messages = asyncio.Event(), 3 * limits.STREAM_WINDOW_BYTES // 1005

    async def slow(bodies: AsyncIterator[bytes], arrival: Arrival, send: Send) -> Reply:
        del arrival
        await read.wait()
        count = sum([1 async for _ in bodies])
        await send(b"%d" % count)
        return Reply(grpc.StatusCode.OK)

    bound = free()
    async with echoing([bound], stream=slow), raw_grpc(bound.getsockname()[1]) as raw:
        stream = raw.ask(head(STREAM), framed(bytes(1000)) * messages)
        # Another call on the connection is served meanwhile, behind what was sent before it.
        assert (await raw.answer(raw.ask(head(ECHO), framed(b"1")))).status == 0
        assert raw.h2.queued_body_size(stream) > limits.STREAM_WINDOW_BYTES
        read.set()
        assert (await raw.answer(stream)).body == framed(b"%d" % messages)


async def test_a_producer_waits_for_a_client_that_does_not_read() -> None:
    sent = []

    async def eager(bodies: AsyncIterator[bytes], arrival: Arrival, send: Send) -> Reply:
        del bodies, arrival
        for number in range(100):
            await send(bytes(16_384))
            sent.append(number)
        return Reply(grpc.StatusCode.OK)

    bound = free()
    async with (
        echoing([bound], stream=eager),
        raw_grpc(bound.getsockname()[1], window_bytes=0) as raw,
    ):
        stream = raw.ask(head(STREAM))
        assert (await raw.answer(raw.ask(head(ECHO)))).status == 2  # there was no request
        assert len(sent) < 10
        raw.h2.set_local_window_size(1 << 24)
        raw.h2.set_local_window_size(1 << 24, stream_id=stream)
        raw.flush()
        assert len((await raw.answer(stream)).body) == 100 * 16_389
