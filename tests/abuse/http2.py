"""HTTP/2 by hand (RFC 9113), for what no client library would send."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CANCEL = 8


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def settings(**values: int) -> bytes:
    """Return a SETTINGS frame; the only setting known is ``initial_window_size``."""
    numbers = {"initial_window_size": INITIAL_WINDOW_SIZE}
    pairs = [struct.pack(">HI", numbers[name], value) for name, value in values.items()]
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def literal(name: bytes, value: bytes) -> bytes:
    """Return a header of under 127 bytes, neither indexed nor compressed (RFC 7541 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


CALL = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/predictor.Predictor/Predict"),
        (b":authority", b"x"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)


def call(stream: int, message: bytes) -> bytes:
    """Return a whole gRPC request."""
    body = b"\0" + len(message).to_bytes(4, "big") + message
    return frame(HEADERS, END_HEADERS, stream, CALL) + frame(DATA, END_STREAM, stream, body)


@dataclass(frozen=True)
class Http2:
    """One connection, past the preface."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def flood(self, content: bytes, piece_bytes: int = 1 << 16) -> None:
        """Send until done or cut off."""
        try:
            for start in range(0, len(content), piece_bytes):
                self.writer.write(content[start : start + piece_bytes])
                await self.writer.drain()
        except ConnectionError:
            return

    def stop_reading(self) -> None:
        """Leave what comes in the kernel's hands."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport too


@asynccontextmanager
async def http2(url: str, first: bytes = settings()) -> AsyncIterator[Http2]:
    """Connect to the gRPC server at ``url``; ``first`` is the first SETTINGS frame."""
    target = urlsplit(url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    try:
        writer.write(PREFACE + first)
        yield Http2(reader, writer)
    finally:
        writer.transport.abort()
