"""One QUIC connection: its requests, each an owned task that runs the ASGI app."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from aioquic.h3.connection import ErrorCode
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    ProtocolNegotiated,
    QuicEvent,
)
from starlette.types import ASGIApp

from scheduler.errors import ServingError
from transports.http.unsent import Unsent
from transports.http3.bridge import Address, Exchange, MalformedRequest, scope_of
from transports.http3.quic import QuicProtocol
from transports.http3.request import Request
from transports.http3.session import STREAM_BYTES, RequestAborted, Session

logger = logging.getLogger(__name__)

# What a handshake may take: a few round trips, a lost packet or two.
HANDSHAKE_TIMEOUT_S = 5.0


@dataclass(slots=True)
class Host:
    """What all connections of a server share; ``connections`` and ``tasks`` are those alive.

    Of the connections, those in ``handshakes`` have yet to prove that they are some client's.

    ``progress`` is set whenever something may have ended or been acknowledged.
    """

    app: ASGIApp
    address: Address
    standing_headers: Sequence[tuple[bytes, bytes]]
    unsent: Unsent
    connections: set["Connection"] = field(default_factory=set)
    handshakes: set["Connection"] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    progress: asyncio.Event = field(default_factory=asyncio.Event)


class Connection(QuicProtocol):
    """Runs one task per request."""

    def __init__(self, host: Host, quic: QuicConnection) -> None:
        super().__init__(quic)
        self._host = host
        self._session: Session | None = None
        self._requests: dict[int, Request] = {}
        self._clock = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self.close)
        host.connections.add(self)
        host.handshakes.add(self)

    @property
    def idle(self) -> bool:
        """No request is under way, and every answer has reached the client."""
        return not self._requests and (self._session is None or self._session.delivered)

    @property
    def unsent_bytes(self) -> int:
        """What the client has not acknowledged yet."""
        return 0 if self._session is None else self._session.unsent_bytes

    def cut_unread(self) -> None:
        """Close the connection on answers that nobody reads."""
        self._session = None
        self.drop_requests()
        self.close(ErrorCode.H3_EXCESSIVE_LOAD)

    def transmit_now(self) -> None:
        """Send what is due; something may have been acknowledged before."""
        super().transmit_now()
        self._host.progress.set()

    def close_now(self, error_code: int) -> None:
        """Close the connection and leave no timer behind."""
        self._clock.cancel()
        super().close_now(error_code)

    def quic_event_received(self, event: QuicEvent) -> None:
        """Follow the connection's life, and turn HTTP/3 events into requests."""
        if isinstance(event, ProtocolNegotiated):
            self._session = Session(self._quic)
        elif isinstance(event, HandshakeCompleted):
            self._clock.cancel()
            self._host.handshakes.discard(self)
        elif isinstance(event, ConnectionTerminated):
            self._clock.cancel()
            self._host.handshakes.discard(self)
            self._host.connections.discard(self)
            self._host.unsent.forget(self)
            self._session = None
            self._host.progress.set()
            self.drop_requests()
        elif self._session is not None:
            for http_event in self._session.handle_event(event):
                self._http_event_received(self._session, http_event)

    def go_away(self) -> None:
        """Take no new requests."""
        if self._session is not None:
            self._session.go_away()
            self.transmit()

    def drop_requests(self) -> None:
        """Tell every request under way that its client is gone."""
        for request in self._requests.values():
            request.disconnect()

    def cut_requests(self, error: ServingError) -> None:
        """Answer every request under way with ``error``."""
        for request in self._requests.values():
            request.cut(error)

    def _http_event_received(self, session: Session, event: H3Event) -> None:
        if isinstance(event, HeadersReceived) and event.stream_id not in self._requests:
            self._begin(session, event)
            return
        # A later HEADERS frame is a trailer, of which only its end matters here.
        if isinstance(event, HeadersReceived | DataReceived):
            data = event.data if isinstance(event, DataReceived) else b""
            if event.stream_id in self._requests:
                self._requests[event.stream_id].receive_body(data, event.stream_ended)
        elif isinstance(event, RequestAborted) and event.stream_id in self._requests:
            self._requests[event.stream_id].disconnect()

    def _begin(self, session: Session, event: HeadersReceived) -> None:
        stream_id = event.stream_id
        if not session.takes_answer(stream_id):  # STOP_SENDING came before the request was whole
            session.forget(stream_id)
            return
        peer = self._quic.get_peer_address()
        try:
            scope = scope_of(event.headers, peer and peer[:2], self._host.address)
        except MalformedRequest as error:
            logger.info("malformed HTTP/3 request: %s", error)
            session.abort(stream_id, ErrorCode.H3_MESSAGE_ERROR)
            return
        exchange = Exchange(scope, self._host.standing_headers)
        exchange.receive_body(b"", event.stream_ended)
        request = Request(session, stream_id, exchange, self.transmit)
        self._requests[stream_id] = request
        task = self._loop.create_task(request.run(self._host.app))
        self._host.tasks.add(task)
        task.add_done_callback(self._host.tasks.discard)
        task.add_done_callback(partial(self._ended, stream_id))

    def _ended(self, stream_id: int, task: asyncio.Task[None]) -> None:
        request = self._requests.pop(stream_id)
        if self._session is not None:
            self._host.unsent.add(self, STREAM_BYTES + request.sent_bytes)
        self._host.progress.set()
        if not task.cancelled() and task.exception() is not None:
            logger.error("HTTP/3 request failed", exc_info=task.exception())
