"""Give any bytes to a connection: it answers in HTTP or closes, and never raises."""

import asyncio
import datetime
import functools
import tempfile
from pathlib import Path
from typing import Any

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import StreamDataReceived
from aioquic.quic.stream import QuicStream
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from scheduler.errors import ServingError
from transports.http.body import Body
from transports.http.head import parse_head
from transports.http.intake import BodyLimits, Intake
from transports.http.listener import ListenerOptions, _config
from transports.http.problem import HttpError
from transports.http.protocol import HttpProtocol
from transports.http.unsent import Unsent
from transports.http3.bridge import MalformedRequest, scope_of
from transports.http3.certificate import development_certificate
from transports.http3.session import Session

TURNS = 20


class Wire(asyncio.Transport):
    """A connection to nowhere that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data: Any) -> None:
        """Keep ``data``."""
        assert not self.closing
        self.written += data

    def writelines(self, pieces: Any) -> None:
        """Keep ``pieces``."""
        self.write(b"".join(pieces))

    def close(self) -> None:
        """Take no more."""
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        """Say whether it is closed."""
        return self.closing

    def can_write_eof(self) -> bool:
        """As TCP."""
        return True

    def write_eof(self) -> None:
        """Do nothing."""

    def get_write_buffer_size(self) -> int:
        """Everything is taken at once."""
        return 0

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""


async def _echo_length(intake: Intake, scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body as an inference request's is read, and answer."""
    body, status = Body(receive, intake), 200
    try:
        head = parse_head(dict(scope["headers"]))
        content = await body.read(head.body_bytes, 0, head.coding)
    except (ServingError, HttpError):
        status, content = 400, b""
    answer = b"%d" % len(content)
    length = (b"content-length", b"%d" % len(answer))
    await send({"type": "http.response.start", "status": status, "headers": [length]})
    await send({"type": "http.response.body", "body": answer})
    body.release()


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    """Return one loop for all runs."""
    made = asyncio.new_event_loop()
    made.set_exception_handler(_raise)
    return made


def _raise(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    raise context.get("exception") or AssertionError(context["message"])


def http1(content: bytes) -> None:
    """A whole HTTP/1.1 connection, whose bytes arrive at once and in two pieces."""
    loop().run_until_complete(_http1([content]))
    half = len(content) // 2
    loop().run_until_complete(_http1([content[:half], content[half:]]))


async def _http1(pieces: list[bytes]) -> None:
    intake, config = _server()
    state, wire = ServerState(), Wire()
    protocol = HttpProtocol(config, state, 60.0, Unsent(1 << 20), lambda: None)
    protocol.connection_made(wire)
    for piece in pieces:
        if not wire.closing:
            protocol.data_received(piece)
        for _ in range(TURNS):
            await asyncio.sleep(0)
    assert wire.written == b"" or wire.written.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 500" not in wire.written
    protocol.connection_lost(None)
    wire.closing = True
    for task in list(state.tasks):
        await task
    assert intake._held_bytes == 0


@functools.cache
def _server() -> tuple[Intake, Config]:
    intake = Intake(BodyLimits(max_request_bytes=4096, max_buffered_bytes=8192))
    config = _config(functools.partial(_echo_length, intake), ListenerOptions())
    config.load()
    return intake, config


def http3_stream(content: bytes) -> None:
    """The bytes of one HTTP/3 stream; the first byte chooses which kind of stream."""
    quic = QuicConnection(configuration=_quic(), original_destination_connection_id=b"12345678")
    for known in (0, 2, 6):  # as if their frames had come over the wire
        quic._streams[known] = QuicStream(known)
    session = Session(quic)
    stream_id, body = (0, 2, 6, 10)[content[0] & 3] if content else 0, content[1:]
    if stream_id == 10:  # the control stream, then a request behind it
        session.handle_event(StreamDataReceived(bytes([0]) + body, False, 2))
        stream_id = 0
    for event in session.handle_event(StreamDataReceived(body, True, stream_id)):
        headers = getattr(event, "headers", None)
        if headers is not None:
            _scope(headers)


def _scope(headers: list[tuple[bytes, bytes]]) -> None:
    try:
        scope = scope_of(headers, None, ("x", 1))
        parse_head(dict(scope["headers"]))
    except (MalformedRequest, ServingError, HttpError):
        return


@functools.cache
def _quic() -> QuicConfiguration:
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    with tempfile.TemporaryDirectory() as folder:
        files = development_certificate(Path(folder), datetime.datetime.now(datetime.UTC))
        configuration.load_cert_chain(files.certificate, files.private_key)
    return configuration
