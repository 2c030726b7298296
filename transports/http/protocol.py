"""uvicorn's HTTP/1.1 protocol with what a server on its own needs: bounds and JSON errors."""

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from scheduler.errors import ServingError
from transports.http.flow import HoldableFlow
from transports.http.problem import HttpError
from transports.http.receiving import CycleReceiving
from transports.http.refusal import refusal
from transports.http.sending import send_whole
from transports.http.unsent import Unsent
from transports.http.whole import with_whole

# The parser itself bounds neither: a head, a trailer or a chunk extension of any length.
MAX_HEAD_BYTES = 64 * 1024
# Requests that may wait for the answers before theirs. What a client sends beyond stays unparsed,
# and then unread: parsed, 270 KiB of small requests are 23 MB.
MAX_PIPELINED = 16
# The parser cannot stop within a piece, so one outside a body is short: it adds few requests.
PIECE_BYTES = 512
# How long a refused client may take to read its answer before the connection is cut.
LINGER_S = 2.0


class HttpProtocol(HttpToolsProtocol):
    """One connection. ``head_timeout_s`` bounds waiting for a request's head, also the first.

    A fault in what a client sends ends the reading, not the answers to what came before it.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        head_timeout_s: float,
        unsent: Unsent,
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self._head_timeout_s = head_timeout_s
        self._unsent = unsent
        self._on_lost = on_lost
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = True
        self._in_body = False
        self._body_left_bytes = 0
        self._unparsed = memoryview(b"")
        self._unfinished_bytes = 0
        self._progressed = False
        self._deaf = self._last = False
        self._bad_body: HttpError | None = None
        self._cut: ServingError | None = None
        self._running: RequestResponseCycle | None = None
        self._receiving: CycleReceiving | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first request."""
        super().connection_made(transport)
        self.flow = self._holdable = HoldableFlow(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request being answered, also when others were pipelined behind it."""
        super().connection_lost(exc)
        self._stop_timer()
        self._unsent.forget(self)
        if self._running is not None:
            self._running.disconnected = True
            self._wake(self._running)
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Parse; refuse what never becomes a request."""
        if not self._deaf:
            left = self._unparsed
            self._unparsed = memoryview(b"".join((left, data)) if left else data)
            self._parse_on()

    @property
    def unsent_bytes(self) -> int:
        """What the kernel has not taken yet."""
        return self.transport.get_write_buffer_size()

    def cut_unread(self) -> None:
        """Close the connection on an answer that nobody reads."""
        self.transport.abort()

    def on_response_complete(self) -> None:
        """Go on with what had to wait."""
        if self.unsent_bytes:
            self._unsent.add(self, self.unsent_bytes)
        super().on_response_complete()
        if self._unparsed and not self.transport.is_closing():
            self._parse_on()

    def shutdown(self) -> None:
        """Close after the answers to what has been parsed."""
        if self._unparsed:
            self._stop_parsing()
        super().shutdown()

    @property
    def fresh(self) -> bool:
        """Whether no request has come on it yet, and one would be read."""
        return not self._deaf and self.cycle is None

    def last(self, within_s: float) -> None:
        """Close after one request, or without one after ``within_s`` seconds."""
        self._last, self._head_timeout_s = True, within_s
        self._stop_timer()
        self._watch_head()

    def cut(self, error: ServingError) -> None:
        """Make ``error`` the answer to every request that has none yet."""
        self._cut = error
        if self._running is not None:
            self._wake(self._running)

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A request's head is complete."""
        self._in_head = False
        self._progressed = True
        if not self.parser.should_upgrade():
            super().on_headers_complete()
            if self._last:
                self.cycle.keep_alive = False
            self._in_body = True
            self._body_left_bytes = int(dict(self.headers).get(b"content-length", 0))

    def on_body(self, body: bytes) -> None:
        """A piece of a request's body."""
        self._progressed = True
        self._body_left_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request's last byte."""
        if not self.parser.should_upgrade():
            self._in_body = False
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: object) -> None:
        del app  # only ever ours
        self._running = cycle
        super()._start_asgi_task(cycle, self._serve)  # type: ignore[arg-type]

    async def _serve(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Run the app; tell it of an end of the server's making, which uvicorn knows not."""
        cycle = self._running
        assert cycle is not None
        self._receiving = CycleReceiving(cycle, self._fault, self._linger)
        with_whole(scope, partial(send_whole, cycle))
        await self.app(scope, self._receiving, send)

    def _fault(self, incomplete: bool) -> ServingError | HttpError | None:
        return self._cut or (self._bad_body if incomplete else None)

    def _wake(self, cycle: RequestResponseCycle) -> None:
        """Let the app see that something has come to an end."""
        cycle.message_event.set()
        if self._receiving is not None:
            self._receiving.look()

    def _parse_on(self) -> None:
        """Parse what has arrived as far as there is room for the requests in it."""
        self._unset_keepalive_if_required()
        while self._unparsed and len(self.pipeline) < MAX_PIPELINED:
            size = max(PIECE_BYTES, self._body_left_bytes)
            piece, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            self._parse(piece)
        self._holdable.hold(bool(self._unparsed))
        self._watch_head()

    def _parse(self, data: memoryview) -> None:
        self._progressed = False
        self._feed(data)
        self._unfinished_bytes = 0 if self._progressed else self._unfinished_bytes + len(data)
        if self._unfinished_bytes > MAX_HEAD_BYTES and not self._deaf:
            detail = f"the request's head exceeds the limit of {MAX_HEAD_BYTES} bytes"
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)

    def _feed(self, data: memoryview) -> None:
        pieces = [data]
        while pieces:
            piece = pieces.pop()
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as offer:
                if self.parser.get_method() == b"CONNECT":
                    self._refuse(HTTPStatus.NOT_IMPLEMENTED, "CONNECT is not supported")
                    return
                pieces += [piece[offer.args[0] :], memoryview(self._declined_head())]
            except httptools.HttpParserError:
                self._refuse(HTTPStatus.BAD_REQUEST, "invalid HTTP request")
                return

    def _declined_head(self) -> bytes:
        """Return the head just parsed, without its offer to upgrade, for a parser started afresh.

        An offer may be ignored (RFC 9110 7.8), but the parser skips the body of a request that
        makes one, and Java's client offers h2c by default.
        """
        line = (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        kept = [pair for pair in self.headers if pair[0] not in {b"upgrade", b"http2-settings"}]
        head = [b"%b %b HTTP/%b\r\n" % line, *(b"%b: %b\r\n" % pair for pair in kept), b"\r\n"]
        return b"".join(head)

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        self._stop_parsing()
        if self._answering():
            # An error here would be taken for the answer to the request before.
            self.cycle.keep_alive = False
            if self._in_body:
                self._bad_body = HttpError(status, detail)
                self.cycle.message_event.set()
        elif self._in_body:  # of a request that has been answered
            self.transport.close()
        else:
            self.transport.write(refusal(status, detail, self.server_state.default_headers))
            self._linger()

    def _stop_parsing(self) -> None:
        """Throw away what comes from here on; it is still read, to see the client leave."""
        self._deaf = True
        self._unparsed = memoryview(b"")
        self._stop_timer()
        self._holdable.hold(False)

    def _linger(self) -> None:
        """Write no more, but let the client read before the connection closes.

        Closing on bytes not read would reset the connection, and take the answer with it.
        """
        if self.transport.is_closing():
            return
        if self._running is not None:
            self._running.disconnected = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._stop_timer()
        self._timer = self.loop.call_later(LINGER_S, self.transport.close)

    def _answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _watch_head(self) -> None:
        """Run the clock exactly while a head is awaited and uvicorn's keep-alive clock is not."""
        if self._deaf:
            return
        waiting = self._in_head or not self._answering()
        if not waiting:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._head_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._stop_parsing()
        self.shutdown()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
