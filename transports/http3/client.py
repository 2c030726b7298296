"""An HTTP/3 client: one connection, many requests at once."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aioquic.h3.connection import ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, QuicEvent, StreamReset
from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import AlertDescription

from transports.http3.bridge import Headers
from transports.http3.quic import QuicProtocol
from transports.http3.udp import UdpTransport

CONNECT_TIMEOUT_S = 10.0
_BAD_CERTIFICATE = QuicErrorCode.CRYPTO_ERROR + AlertDescription.bad_certificate


class Http3Error(Exception):
    """Say why there is no answer: the connection or the stream has ended."""


class UntrustedError(Http3Error):
    """Say why the server's certificate is not trusted."""


@dataclass(frozen=True, slots=True)
class Http3Answer:
    """One complete answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Http3Client:
    """Send requests over the connection that ``connect`` opened."""

    def __init__(self, protocol: "_ClientProtocol", authority: str) -> None:
        self._protocol = protocol
        self._authority = authority

    @classmethod
    @asynccontextmanager
    async def connect(cls, host: str, port: int, ca: Path) -> AsyncIterator["Http3Client"]:
        """Connect, trusting the certificates in the PEM file ``ca``; close at the end.

        Raises OSError (TimeoutError among them) or Http3Error.
        """
        _check_ca(ca)
        family, address = await _resolve(host, port)
        configuration = QuicConfiguration(alpn_protocols=["h3"], server_name=host)
        configuration.load_verify_locations(str(ca))
        protocol = _ClientProtocol(QuicConnection(configuration=configuration))
        udp = socket.socket(family, socket.SOCK_DGRAM)
        udp.setblocking(False)
        transport = UdpTransport(udp, protocol)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await protocol.handshake(address)
            yield cls(protocol, f"{host}:{port}")
        finally:
            protocol.close_now(ErrorCode.H3_NO_ERROR)
            transport.close()

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Http3Answer:
        """Send ``body`` and return the answer; a cancel abandons the stream. Raises Http3Error."""
        fields = {**headers, "content-length": str(len(body))}
        return await self._protocol.exchange(self._head("POST", path, fields), body)

    async def get(self, path: str) -> Http3Answer:
        """Return the answer to a GET. Raises Http3Error."""
        return await self._protocol.exchange(self._head("GET", path, {}), b"")

    def _head(self, method: str, path: str, fields: Mapping[str, str]) -> Headers:
        return [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":authority", self._authority.encode()),
            (b":path", path.encode()),
            *((name.encode(), value.encode()) for name, value in fields.items()),
        ]


@dataclass(slots=True)
class _Pending:
    answer: asyncio.Future[Http3Answer]
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)

    def finish(self) -> None:
        if not self.answer.done():
            headers = {k: v for k, v in self.headers.items() if not k.startswith(":")}
            status = int(self.headers[":status"])
            self.answer.set_result(Http3Answer(status, headers, b"".join(self.chunks)))

    def fail(self, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(Http3Error(reason))


class _ClientProtocol(QuicProtocol):
    """The client's end of a connection; answers are futures by stream."""

    def __init__(self, quic: QuicConnection) -> None:
        super().__init__(quic)
        self._http = H3Connection(quic)
        self._pending: dict[int, _Pending] = {}
        self._ended: str | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()

    async def handshake(self, address: tuple[str, int]) -> None:
        """Connect to ``address``. Raises Http3Error."""
        self.connect(address)
        await self._ready

    async def exchange(self, head: Headers, body: bytes) -> Http3Answer:
        """Send one request and wait for its answer. Raises Http3Error."""
        if self._ended is not None:
            raise Http3Error(self._ended)
        stream_id = self._quic.get_next_available_stream_id()
        pending = self._pending[stream_id] = _Pending(self._loop.create_future())
        self._http.send_headers(stream_id, head, end_stream=not body)
        if body:
            self._http.send_data(stream_id, body, end_stream=True)
        self.transmit()
        try:
            return await pending.answer
        except asyncio.CancelledError:
            self._abandon(stream_id)
            raise
        finally:
            del self._pending[stream_id]

    def _abandon(self, stream_id: int) -> None:
        """Take no answer on a stream, unless all of it has come in the meantime."""
        self._quic.reset_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
        with suppress(ValueError):  # aioquic's word for a stream that is over
            self._quic.stop_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
        self.transmit()

    def quic_event_received(self, event: QuicEvent) -> None:
        """Complete the handshake and the answers."""
        if isinstance(event, HandshakeCompleted) and not self._ready.done():
            self._ready.set_result(None)
        elif isinstance(event, ConnectionTerminated):
            reason = event.reason_phrase or f"connection closed, code {event.error_code:#x}"
            # A certificate of another name than asked for has the same code.
            other_name = reason.startswith("hostname ")
            bad = event.error_code == _BAD_CERTIFICATE and not other_name
            self._end(UntrustedError(reason) if bad else Http3Error(reason))
        elif isinstance(event, StreamReset) and event.stream_id in self._pending:
            self._pending[event.stream_id].fail(f"stream reset, code {event.error_code:#x}")
        for http_event in self._http.handle_event(event):
            self._http_event_received(http_event)

    def _http_event_received(self, event: H3Event) -> None:
        if not isinstance(event, HeadersReceived | DataReceived):
            return
        pending = self._pending.get(event.stream_id)
        if pending is None:
            return
        if isinstance(event, DataReceived):
            pending.chunks.append(event.data)
        else:
            pending.headers.update((k.decode(), v.decode("latin-1")) for k, v in event.headers)
        if event.stream_ended:
            pending.finish()

    def _end(self, error: Http3Error) -> None:
        self._ended = reason = str(error)
        if not self._ready.done():
            self._ready.set_exception(error)
        for pending in self._pending.values():
            pending.fail(reason)


def _check_ca(ca: Path) -> None:
    # aioquic reads the file only in the middle of the handshake, where its error is lost.
    try:
        ssl.create_default_context(cafile=ca)
    except OSError as error:
        problem = "not found" if isinstance(error, FileNotFoundError) else "not readable as PEM"
        raise UntrustedError(f"CA file {ca} {problem}") from error


async def _resolve(host: str, port: int) -> tuple[int, tuple[str, int]]:
    """IPv4 first: servers of ours listen on 127.0.0.1 unless told otherwise."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))
