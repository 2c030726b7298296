"""uvicorn's HTTP/1.1 protocol with what a server on its own needs: bounds and JSON errors."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from transports.http.problem import MEDIA_TYPE, status_problem

# The parser itself bounds neither: a head, a trailer or a chunk extension of any length.
MAX_HEAD_BYTES = 64 * 1024
# How long a refused client may take to read its answer before the connection is cut.
LINGER_S = 2.0


class HttpProtocol(HttpToolsProtocol):
    """One connection. ``head_timeout_s`` bounds waiting for a request's head, also the first."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        head_timeout_s: float,
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self._head_timeout_s = head_timeout_s
        self._on_lost = on_lost
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = True
        self._unparsed_bytes = 0
        self._progressed = False
        self._refused = False
        self._running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first request."""
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request being answered, also when others were pipelined behind it."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Parse; refuse what never becomes a request."""
        if self._refused:
            return
        self._progressed = False
        self._unset_keepalive_if_required()
        self._parse(data)
        self._unparsed_bytes = 0 if self._progressed else self._unparsed_bytes + len(data)
        if self._unparsed_bytes > MAX_HEAD_BYTES and not self._refused:
            detail = f"the request's head exceeds the limit of {MAX_HEAD_BYTES} bytes"
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
        self._watch_head()

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

    def on_body(self, body: bytes) -> None:
        """A piece of a request's body."""
        self._progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request's last byte."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: object) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]

    def _parse(self, data: bytes) -> None:
        pieces = [memoryview(data)]
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
        if self._answering():
            # An error here would be taken for the answer to the request before.
            self.transport.close()
            return
        self._refused = True
        body = status_problem(status, detail).body("")
        head = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        lines = [b"%b: %b\r\n" % pair for pair in [*self.server_state.default_headers, *head]]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", body]))
        # Closing on bytes not read would reset the connection, and take the answer with it.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._close_after(LINGER_S)

    def _answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _watch_head(self) -> None:
        """Run the clock exactly while a head is awaited and uvicorn's keep-alive clock is not."""
        waiting = self._in_head or not self._answering()
        if not waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif waiting and self._timer is None:
            self._close_after(self._head_timeout_s)

    def _close_after(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(delay_s, self.transport.close)
