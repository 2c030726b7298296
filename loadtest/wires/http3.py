"""HTTP/3 on qh3 without asyncio: many requests at once on one connection.

qh3 has aioquic's interface on a core in Rust, which costs a fifth; the server cannot use it
(docs/decisions/0007).
"""

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Iterator

from qh3.h3.connection import ErrorCode, H3Connection
from qh3.h3.events import DataReceived, HeadersReceived
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection, QuicConnectionError
from qh3.quic.events import ConnectionTerminated, HandshakeCompleted, StreamReset

from loadtest.closed import NoServerError
from loadtest.wires.base import CONNECT_TIMEOUT_S, Answer, Target
from loadtest.wires.tls import own_signature, reason, trusting
from transports.codecs.problem_json import problem_detail
from transports.http3.bulk import BulkSocket

_READS_AT_ONCE = 64


class Http3Wire:
    """One QUIC connection."""

    blocked = False  # what the kernel does not take QUIC sends again

    def __init__(self, target: Target) -> None:
        self._ca = target.ca
        self._quic = QuicConnection(configuration=_configuration(target))
        self._socket = _connected(target)
        self._bulk = BulkSocket(self._socket)
        self._peer = self._socket.getpeername()[:2]
        self._http = H3Connection(self._quic)
        self._tickets: dict[int, int] = {}
        self._streams: dict[int, int] = {}
        self._statuses: dict[int, str] = {}
        self._bodies: dict[int, bytes] = {}
        self._ready = False
        self._head = [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":authority", target.authority.encode()),
            (b":path", target.path.encode()),
            *((name.encode(), value.encode()) for name, value in target.headers.items()),
        ]
        self._quic.connect(self._peer, time.monotonic())
        try:
            self._handshake()
        except NoServerError:
            self._socket.close()
            raise

    @property
    def due_s(self) -> float:
        """Return when ``receive`` must be called even if nothing has arrived (perf_counter)."""
        timer_s = self._quic.get_timer()
        return float("inf") if timer_s is None else timer_s

    @property
    def free(self) -> bool:
        """Say whether the server takes another stream."""
        begun = self._quic.get_next_available_stream_id() // 4
        return begun < self._quic.max_concurrent_bidi_streams

    def fileno(self) -> int:
        """Return the socket's number."""
        return self._socket.fileno()

    def ask(self, ticket: int, body: bytes) -> None:
        """Begin a request."""
        stream_id = self._quic.get_next_available_stream_id()
        length = (b"content-length", b"%d" % len(body))
        with _no_server():
            self._http.send_headers(stream_id, [*self._head, length], end_stream=not body)
            if body:
                self._http.send_data(stream_id, body, end_stream=True)
        self._tickets[stream_id] = ticket
        self._streams[ticket] = stream_id

    def cancel(self, ticket: int) -> None:
        """Reset the request's stream."""
        stream_id = self._streams.pop(ticket)
        del self._tickets[stream_id]
        with _no_server():
            self._quic.reset_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
            self._quic.stop_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)

    def flush(self) -> None:
        """Send every datagram that is due."""
        due = self._quic.datagrams_to_send(time.monotonic())
        self._bulk.send([(data, None) for data, _ in due])

    def receive(self) -> list[Answer]:
        """Read what has arrived; return the answers that are now complete."""
        for _ in range(_READS_AT_ONCE):
            try:
                data, step, _ = self._bulk.receive()
            except BlockingIOError:
                break
            except OSError as error:
                raise NoServerError(f"connection lost: {error}") from error
            self._quic.receive_gro_buffer(data, step, self._peer, time.monotonic())
        if self.due_s <= time.monotonic():
            self._quic.handle_timer(time.monotonic())
        return self._events()

    def close(self) -> None:
        """Say goodbye and close the socket."""
        self._quic.close(error_code=ErrorCode.H3_NO_ERROR)
        self.flush()
        self._socket.close()

    def _handshake(self) -> None:
        end_s = time.monotonic() + CONNECT_TIMEOUT_S
        self.flush()
        while not self._ready:
            left_s = min(end_s, self.due_s) - time.monotonic()
            select.select([self], [], [], max(0.0, left_s))
            self.receive()
            self.flush()
            if time.monotonic() > end_s:
                raise NoServerError("no answer over QUIC")

    def _events(self) -> list[Answer]:
        answers = []
        while (event := self._quic.next_event()) is not None:
            if isinstance(event, HandshakeCompleted):
                self._ready = True
            elif isinstance(event, ConnectionTerminated):
                reason = event.reason_phrase or f"code {event.error_code:#x}"
                trusted = "" if self._ready else f"; trusted is {self._ca} (--ca)"
                raise NoServerError(f"connection lost: {reason}{trusted}")
            elif isinstance(event, StreamReset):
                answers += self._end(event.stream_id, "RESET", "the stream was reset")
            for part in self._http.handle_event(event):
                if isinstance(part, DataReceived | HeadersReceived):
                    answers += self._part(part)
        return answers

    def _part(self, part: DataReceived | HeadersReceived) -> list[Answer]:
        if isinstance(part, HeadersReceived):
            self._statuses[part.stream_id] = dict(part.headers)[b":status"].decode()
        else:
            self._bodies[part.stream_id] = self._bodies.get(part.stream_id, b"") + part.data
        if not part.stream_ended:
            return []
        status = self._statuses.get(part.stream_id, "no status")
        if status == "200":
            return self._end(part.stream_id, "", "")
        return self._end(
            part.stream_id, status, problem_detail(self._bodies.get(part.stream_id, b""))
        )

    def _end(self, stream_id: int, status: str, detail: str) -> list[Answer]:
        self._statuses.pop(stream_id, None)
        body = self._bodies.pop(stream_id, b"")
        ticket = self._tickets.pop(stream_id, None)
        if ticket is None:
            return []
        del self._streams[ticket]
        return [Answer(ticket, status, detail, body)]


@contextlib.contextmanager
def _no_server() -> Iterator[None]:
    """Translate what qh3 says of a connection that the server has closed."""
    try:
        yield
    except QuicConnectionError as error:
        raise NoServerError(f"connection lost: {error.reason_phrase}") from error


def _configuration(target: Target) -> QuicConfiguration:
    # It reads the file only in the middle of the handshake, where its error is lost.
    trusting(target.ca)
    configuration = QuicConfiguration(alpn_protocols=["h3"], server_name=target.host)
    own = own_signature(target.ca)
    if own is None:
        configuration.load_verify_locations(target.ca)
    else:
        configuration.verify_mode = ssl.CERT_NONE
        configuration.assert_fingerprint = own
    return configuration


def _connected(target: Target) -> socket.socket:
    # IPv4 first: servers of ours listen on 127.0.0.1 unless told otherwise.
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_DGRAM)
        family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        udp = socket.socket(family, socket.SOCK_DGRAM)
        udp.connect(address)
    except OSError as error:
        raise NoServerError(reason(error)) from error
    udp.setblocking(False)
    return udp
