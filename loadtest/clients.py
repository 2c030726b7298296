"""One cheap sender a wire; each holds its own connection, or a stream of a shared one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio

from loadtest.closed import RequestFailedError, Send
from transports.http3.client import Http3Client

PREDICT = "/predictor.Predictor/Predict"


@asynccontextmanager
async def connect(url: str, count: int, content_type: str, ca: Path) -> AsyncIterator[list[Send]]:
    """Open ``count`` senders to ``url`` (grpc://, http:// or https:// for HTTP/3)."""
    target = urlsplit(url)
    async with AsyncExitStack() as stack:
        if target.scheme == "grpc":
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(target.netloc))
            yield [_grpc_sender(channel)] * count
        elif target.scheme == "https":
            address = (target.hostname or "localhost", target.port or 443)
            client = await stack.enter_async_context(Http3Client.connect(*address, ca))
            yield [_http3_sender(client, content_type)] * count
        else:
            yield [await _http_sender(target.netloc, content_type, stack) for _ in range(count)]


def _grpc_sender(channel: grpc.aio.Channel) -> Send:
    call = channel.unary_unary(PREDICT)

    async def send(body: bytes) -> None:
        try:
            await call(body)
        except grpc.aio.AioRpcError as error:
            raise RequestFailedError(error.code().name) from error

    return send


def _http3_sender(client: Http3Client, content_type: str) -> Send:
    async def send(body: bytes) -> None:
        answer = await client.post("/v1/predict", body, {"content-type": content_type})
        if answer.status != 200:
            raise RequestFailedError(str(answer.status))

    return send


async def _http_sender(netloc: str, content_type: str, stack: AsyncExitStack) -> Send:
    host, port = netloc.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    stack.callback(writer.close)
    head = f"POST /v1/predict HTTP/1.1\r\nhost: {netloc}\r\ncontent-type: {content_type}\r\n"

    async def send(body: bytes) -> None:
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = answer.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]
        await reader.readexactly(int(length))
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RequestFailedError(answer[9:12].decode())

    return send
