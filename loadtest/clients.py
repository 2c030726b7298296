"""One cheap sender a wire; each holds its own connection, or a stream of a shared one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import grpc.aio

from loadtest.closed import NoServerError, RequestFailedError, Send
from transports.codecs.problem_json import problem_detail
from transports.http3.client import Http3Client, Http3Error

PREDICT = "/predictor.Predictor/Predict"


@asynccontextmanager
async def connect(url: str, count: int, content_type: str, ca: Path) -> AsyncIterator[list[Send]]:
    """Open ``count`` senders to ``url`` (grpc://, http:// or https:// for HTTP/3).

    Raises NoServerError. The senders raise it too, or RequestFailedError.
    """
    target = urlsplit(url)
    async with AsyncExitStack() as stack:
        try:
            if target.scheme == "grpc":
                senders = [await _grpc_sender(target, stack)] * count
            elif target.scheme == "https":
                senders = [await _http3_sender(target, content_type, ca, stack)] * count
            else:
                senders = [await _http_sender(target, content_type, stack) for _ in range(count)]
        except (OSError, Http3Error) as error:
            raise NoServerError(f"cannot connect to {url}: {str(error) or 'no answer'}") from error
        yield senders


async def _grpc_sender(target: SplitResult, stack: AsyncExitStack) -> Send:
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(target.netloc))
    await _ready(channel)
    call = channel.unary_unary(PREDICT)

    async def send(body: bytes) -> None:
        try:
            await call(body)
        except grpc.aio.AioRpcError as error:
            # UNAVAILABLE may also be the server's own answer; then the channel is still up.
            if channel.get_state() is not grpc.ChannelConnectivity.READY:
                raise NoServerError(f"connection lost: {error.details()}") from error
            raise RequestFailedError(error.code().name, error.details() or "") from error

    return send


async def _ready(channel: grpc.aio.Channel) -> None:
    """Wait for a connection, as channel_ready does, but raise OSError when it is refused."""
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise ConnectionRefusedError("nothing answers gRPC there")
        await channel.wait_for_state_change(state)


async def _http3_sender(
    target: SplitResult, content_type: str, ca: Path, stack: AsyncExitStack
) -> Send:
    address = (target.hostname or "localhost", target.port or 443)
    client = await stack.enter_async_context(Http3Client.connect(*address, ca))

    async def send(body: bytes) -> None:
        try:
            answer = await client.post("/v1/predict", body, {"content-type": content_type})
        except Http3Error as error:
            raise NoServerError(f"connection lost: {error}") from error
        if answer.status != 200:
            raise RequestFailedError(str(answer.status), problem_detail(answer.body))

    return send


async def _http_sender(target: SplitResult, content_type: str, stack: AsyncExitStack) -> Send:
    reader, writer = await asyncio.open_connection(target.hostname, target.port or 80)
    stack.callback(writer.close)
    head = f"POST /v1/predict HTTP/1.1\r\nhost: {target.netloc}\r\ncontent-type: {content_type}\r\n"

    async def send(body: bytes) -> None:
        try:
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = answer.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]
            content = await reader.readexactly(int(length))
        except (OSError, EOFError) as error:
            raise NoServerError("connection lost: the server closed it") from error
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RequestFailedError(answer[9:12].decode(), problem_detail(content))

    return send
