"""Unary gRPC calls on libnghttp2: many at once on one connection.

grpcio's own client costs several times what a fast server does: then the client is measured.
"""

from urllib.parse import unquote

import ngh2

from loadtest.closed import NoServerError
from loadtest.wires.base import Answer, Target, TcpWire

# Many answers fit into the windows, so that the client slows no server down.
_WINDOW_BYTES = 16 << 20
_CANCEL = 8
# By number: the gRPC specification, "Status codes and their use in gRPC".
STATUSES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip


class GrpcWire(TcpWire):
    """One HTTP/2 connection. Bodies are messages without gRPC's prefix."""

    alpn = "h2"
    free = True

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._h2 = ngh2.Connection(ngh2.Role.CLIENT)
        self._h2.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: _WINDOW_BYTES})
        self._h2.set_local_window_size(_WINDOW_BYTES)
        self._tickets: dict[int, int] = {}
        self._streams: dict[int, int] = {}
        self._bodies: dict[int, bytes] = {}
        self._ends: dict[int, tuple[str, str]] = {}
        self._head = [
            (b":method", b"POST"),
            (b":scheme", b"https" if target.tls else b"http"),
            (b":path", target.path.encode()),
            (b":authority", target.authority.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            *((name.encode(), value.encode()) for name, value in target.headers.items()),
        ]

    def ask(self, ticket: int, body: bytes) -> None:
        """Begin a call."""
        try:
            stream_id = self._h2.send_request(self._head)
        except ngh2.NGH2Error as error:
            raise NoServerError(f"connection lost: {error}") from error
        frame = b"\0" + len(body).to_bytes(4, "big") + body
        self._h2.send_data(stream_id, frame, end_stream=True)
        self._tickets[stream_id] = ticket
        self._streams[ticket] = stream_id

    def cancel(self, ticket: int) -> None:
        """Reset the call's stream."""
        stream_id = self._streams.pop(ticket)
        del self._tickets[stream_id]
        self._h2.reset_stream(stream_id, _CANCEL)

    def _to_send(self) -> bytes:
        return self._h2.data_to_send()

    def _received(self, data: bytes) -> list[Answer]:
        answers = []
        try:
            self._h2.receive_data(data)
        except ngh2.NGH2Error as error:
            raise NoServerError(f"connection lost: no HTTP/2 comes back: {error}") from error
        for event in self._h2.events():
            if isinstance(event, ngh2.DataReceived):
                self._bodies[event.stream_id] = self._bodies.get(event.stream_id, b"") + event.data
            elif isinstance(event, ngh2.ResponseReceived | ngh2.TrailersReceived):
                self._read_status(event)
            elif isinstance(event, ngh2.StreamClosed):
                answers += self._answer(event.stream_id)
        return answers

    def _read_status(self, event: ngh2.ResponseReceived | ngh2.TrailersReceived) -> None:
        fields = dict(event.headers)
        if b"grpc-status" in fields:
            number = int(fields[b"grpc-status"])
            name = STATUSES[number] if number < len(STATUSES) else str(number)
            message = unquote(fields.get(b"grpc-message", b"").decode())
            self._ends[event.stream_id] = ("" if number == 0 else name, message)

    def _answer(self, stream_id: int) -> list[Answer]:
        body = self._bodies.pop(stream_id, b"")
        status, detail = self._ends.pop(stream_id, ("RESET", "the stream was reset"))
        ticket = self._tickets.pop(stream_id, None)
        if ticket is None:
            return []
        del self._streams[ticket]
        return [Answer(ticket, status, detail, body[5:])]
