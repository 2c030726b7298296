"""One HTTP/2 connection: bytes <-> ngh2 <-> calls."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import ngh2

from scheduler.errors import Code, ServingError
from transports.grpc.methods import Methods
from transports.grpc.nghttp2 import limits
from transports.grpc.nghttp2.budget import Budget
from transports.grpc.nghttp2.calls import Call
from transports.grpc.nghttp2.head import NotGrpcError
from transports.grpc.nghttp2.opening import Opening
from transports.grpc.nghttp2.output import Output
from transports.grpc.nghttp2.wire import Wire
from transports.grpc.options import GrpcOptions

logger = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """Serve one client. ``made`` is called when it is there, ``lost`` when it is gone.

    For who watches it: ``heard_s`` is when the client last sent anything, ``greeted`` whether it
    speaks HTTP/2, ``idle_frames`` how many of its frames moved nothing lately.
    """

    output: Output

    def __init__(
        self,
        options: GrpcOptions,
        methods: Methods,
        budget: Budget,
        made: Callable[["Connection"], None],
        lost: Callable[["Connection"], None],
    ) -> None:
        self._options = options
        self._methods = methods
        self._budget = budget
        self._made = made
        self._lost = lost
        self._h2 = ngh2.Connection(ngh2.Role.SERVER, limits.CONFIGURATION)
        self.calls: dict[int, Call] = {}
        self.made_s = self.heard_s = time.perf_counter()
        self.greeted = False
        self.idle_frames = 0
        self._handlers: Mapping[type[ngh2.Event], Callable[[Any], None]] = {
            ngh2.RequestReceived: self._on_request,
            ngh2.DataReceived: self._on_data,
            ngh2.TrailersReceived: self._on_trailers,
            ngh2.StreamClosed: self._on_closed,
            ngh2.PingReceived: self._on_idle,
            ngh2.SettingsReceived: self._on_settings,
            ngh2.ConnectionClosed: self._on_end,
        }
        self._most_unfinished_bytes = limits.UNFINISHED_BYTES + options.max_message_bytes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Greet; leave if TLS agreed on another protocol."""
        self._transport = transport
        self.output = Output(self._h2, transport, self._sent)
        self._wire = Wire(self._h2, self.output, self._methods.refused, self._budget)
        self._opening = Opening(self._wire, self._methods, self._options.max_message_bytes)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            transport.abort()
            return
        self._made(self)
        self._h2.initiate_connection(limits.settings(self._options))
        self._h2.set_local_window_size(limits.CONNECTION_WINDOW_BYTES)
        self.output.now()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what runs for a client that is gone."""
        del exc
        self._close()
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes off the wire."""
        if self.output.closed:
            return
        self.heard_s = time.perf_counter()
        try:
            self._h2.receive_data(data)
        except ngh2.NGH2Error as error:
            logger.info("a gRPC client broke HTTP/2: %s", error)
            self.abort()
            return
        self._dispatch()
        self._wire.write_if_wanted()

    def pause_writing(self) -> None:
        """The socket is full."""
        self.output.pause()

    def resume_writing(self) -> None:
        """The socket has room again."""
        self.output.resume()

    def announce_end(self) -> None:
        """Ask the client to begin no more calls; those on the wire meanwhile are served."""
        if not self.output.closed:
            self._h2.send_shutdown_notice()
            self.output.now()

    def end_after_calls(self) -> None:
        """Take no more calls, and close once those under way are over."""
        if not self.output.closed:
            self._h2.send_goaway()
            self.output.now()

    def ping(self) -> None:
        """Ask the client whether it is there."""
        self._h2.ping()
        self.output.soon()

    def terminate(self, error: ngh2.ErrorCode) -> None:
        """Say why, and close."""
        if not self.output.closed:
            self._h2.terminate_connection(error)
            self.output.now()
            self._close()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._close()
        self._transport.abort()

    def _close(self) -> None:
        self.output.close()
        for call in self.calls.values():
            call.left()
        self.calls.clear()

    def _sent(self) -> None:
        self._dispatch()
        self._wire.stop_uploads()

    def _dispatch(self) -> None:
        for event in self._h2.events():
            if self.output.closed:
                return
            handle = self._handlers.get(type(event))
            if handle is not None:
                handle(event)

    def _on_request(self, event: ngh2.RequestReceived) -> None:
        stream_id, now_s = event.stream_id, self.heard_s
        unsent_bytes = self._h2.queued_body_size()
        try:
            if unsent_bytes > limits.UNSENT_BYTES:
                call = self._opening.refused(stream_id, now_s, _unread(unsent_bytes))
            else:
                call = self._opening.call(stream_id, event.headers, now_s)
        except NotGrpcError as error:
            self._wire.refuse_http(stream_id, error.status)
            if not event.end_stream:
                self._wire.stop_upload(stream_id)
            return
        self.calls[stream_id] = call
        if event.end_stream:
            call.complete = True
            call.received(b"")

    def _on_data(self, event: ngh2.DataReceived) -> None:
        data = event.data
        call = self.calls.get(event.stream_id)
        if call is None:
            if data:
                self._wire.consumed(event.stream_id, len(data))
            return
        call.heard_s = self.heard_s
        if event.end_stream:
            call.complete = True
            self.idle_frames -= 2
        elif not data:
            self._on_idle(event)
        call.received(data)
        unfinished_bytes = self._wire.unfinished_bytes
        if unfinished_bytes > self._most_unfinished_bytes:
            call.refuse(_unfinished(unfinished_bytes, self._most_unfinished_bytes))

    def _on_trailers(self, event: ngh2.TrailersReceived) -> None:
        call = self.calls.get(event.stream_id)
        if call is not None:  # gRPC's clients send none, but they do end the stream
            call.complete = True
            call.received(b"")

    def _on_closed(self, event: ngh2.StreamClosed) -> None:
        self._wire.forget(event.stream_id)
        call = self.calls.pop(event.stream_id, None)
        if call is not None:
            call.left()

    def _on_idle(self, event: ngh2.Event) -> None:
        del event
        self.idle_frames = max(0, self.idle_frames) + 1
        if self.idle_frames > limits.MOST_IDLE_FRAMES:
            self.terminate(ngh2.ErrorCode.ENHANCE_YOUR_CALM)

    def _on_settings(self, event: ngh2.SettingsReceived) -> None:
        self.greeted = True
        self._on_idle(event)

    def _on_end(self, event: ngh2.ConnectionClosed) -> None:
        del event
        self._close()
        self._transport.close()


def _unread(unsent_bytes: int) -> ServingError:
    return ServingError(
        Code.OVERLOADED,
        f"{unsent_bytes} bytes of answers wait to be read on this connection, "
        f"the limit is {limits.UNSENT_BYTES}",
    )


def _unfinished(unfinished_bytes: int, limit_bytes: int) -> ServingError:
    return ServingError(
        Code.OVERLOADED,
        f"{unfinished_bytes} bytes of unfinished messages were sent on this connection, "
        f"the limit is {limit_bytes}",
    )
