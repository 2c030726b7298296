"""Answer every request with the same bytes: what it is asked tells the generator's own limit.

``python -m loadtest.null_server grpc|http [FOLDER]`` prints its port; with a FOLDER, where its
certificate lies then, in TLS. HTTP/3 has ``null_http3``. It reads no more of a request than where
it ends, so that it costs less than any client.
"""

import asyncio
import datetime
import ssl
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, cast

import uvloop

_PREFACE_BYTES = 24
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_END_STREAM, _ACK = 1, 1
_MOST = (1 << 31) - 1
_ALPN = {"grpc": "h2", "http": "http/1.1"}


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags))
    return head + stream_id.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """Return a header field that the peer does not index (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


# Index 8 of HPACK's static table is :status 200.
_HEAD = b"\x88" + _literal(b"content-type", b"application/grpc")
_TRAILERS = _literal(b"grpc-status", b"0")
# As long as a hundred scores.
ANSWER = bytes(400)
_MESSAGE = b"\0" + len(ANSWER).to_bytes(4, "big") + ANSWER


class NullGrpc(asyncio.Protocol):
    """Answer each HTTP/2 stream that ends. Requests' headers are never decoded."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = _PREFACE_BYTES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open every window as far as it goes."""
        # uvloop's transports are no subclass of it.
        self._transport = transport = cast("asyncio.Transport", transport)
        window = (4).to_bytes(2, "big") + _MOST.to_bytes(4, "big")
        streams = (3).to_bytes(2, "big") + (1 << 20).to_bytes(4, "big")
        increment = (_MOST - 65_535).to_bytes(4, "big")
        transport.write(_frame(_SETTINGS, 0, 0, window + streams))
        transport.write(_frame(_WINDOW_UPDATE, 0, 0, increment))

    def data_received(self, data: bytes) -> None:
        """Answer what is complete."""
        buffer = self._buffer
        buffer += data
        place, out, taken = self._skip, [], 0
        while len(buffer) >= place + 9:
            length = int.from_bytes(buffer[place : place + 3], "big")
            end = place + 9 + length
            if len(buffer) < end:
                break
            kind, flags = buffer[place + 3], buffer[place + 4]
            taken += length if kind == _DATA else 0
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                out.append(self._answer(bytes(buffer[place + 5 : place + 9])))
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                echoed = bytes(buffer[place + 9 : end]) if kind == _PING else b""
                out.append(_frame(kind, _ACK, 0, echoed))
            place = end
        self._skip = 0 if place <= len(buffer) else place
        if self._skip == 0:
            del buffer[:place]
        if taken:
            out.append(_frame(_WINDOW_UPDATE, 0, 0, taken.to_bytes(4, "big")))
        self._transport.write(b"".join(out))

    @staticmethod
    def _answer(stream: bytes) -> bytes:
        stream_id = int.from_bytes(stream, "big")
        return (
            _frame(_HEADERS, 4, stream_id, _HEAD)
            + _frame(_DATA, 0, stream_id, _MESSAGE)
            + _frame(_HEADERS, 4 | _END_STREAM, stream_id, _TRAILERS)
        )


class NullHttp(asyncio.Protocol):
    """Answer each HTTP/1.1 request by its content-length."""

    _ANSWER: ClassVar[bytes] = b"HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n" + ANSWER

    def __init__(self) -> None:
        self._buffer = b""
        self._needed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer what is complete."""
        self._buffer += data
        while len(self._buffer) >= self._needed:
            head, found, _ = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            length = head.lower().rpartition(b"content-length:")[2].split(b"\r\n")[0]
            self._needed = len(head) + 4 + int(length)
            if len(self._buffer) < self._needed:
                return
            self._transport.write(self._ANSWER)
            self._buffer, self._needed = self._buffer[self._needed :], 0


PROTOCOLS: dict[str, Callable[[], asyncio.Protocol]] = {"grpc": NullGrpc, "http": NullHttp}


async def serve(scheme: str, folder: Path | None) -> None:
    """Serve on a free port of 127.0.0.1 for ever; print the port."""
    loop, tls = asyncio.get_running_loop(), _tls(scheme, folder) if folder else None
    server = await loop.create_server(PROTOCOLS[scheme], "127.0.0.1", 0, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _tls(scheme: str, folder: Path) -> ssl.SSLContext:
    # Only where it is wanted: it takes a tenth of a second to import.
    from transports.http3.certificate import development_certificate  # noqa: PLC0415

    files = development_certificate(folder, datetime.datetime.now(datetime.UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.private_key)
    context.set_alpn_protocols([_ALPN[scheme]])
    return context


def main(argv: Sequence[str]) -> None:
    """Serve the wire that ``argv`` names."""
    uvloop.run(serve(argv[0], Path(argv[1]) if argv[1:] else None))


if __name__ == "__main__":
    main(sys.argv[1:])
