"""HTTP/1.1 requests off the wire: httptools with bounds, and without upgrades."""

from collections.abc import Callable
from http import HTTPStatus

import httptools

from transports.http.problem import HttpError
from transports.http.request_head import RequestHead
from transports.http.turns import Turn

# The parser itself bounds neither: a head, a trailer or a chunk extension of any length.
MAX_HEAD_BYTES = 64 * 1024


class Parsing:
    """The requests of one connection: ``begin`` takes a head and returns what takes its body.

    ``in_head`` while a head is awaited or incomplete, ``in_body`` while a body is.
    """

    def __init__(self, begin: Callable[[RequestHead], Turn]) -> None:
        self.in_head = True
        self.in_body = False
        self.body_left_bytes = 0
        self._begin: Callable[[RequestHead], Turn] | None = begin
        self._turn: Turn | None = None
        self._parser = self._new_parser()
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._unfinished_bytes = 0
        self._progressed = False

    def feed(self, data: memoryview) -> HttpError | None:
        """Parse ``data``; return why nothing after it can be parsed, None if it can."""
        self._progressed = False
        fault = self._feed(data)
        self._unfinished_bytes = 0 if self._progressed else self._unfinished_bytes + len(data)
        if fault is None and self._unfinished_bytes > MAX_HEAD_BYTES:
            detail = f"the request's head exceeds the limit of {MAX_HEAD_BYTES} bytes"
            return HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
        return fault

    def close(self) -> None:
        """Let go of the connection; nothing is fed any more."""
        self._begin = self._turn = None

    def on_message_begin(self) -> None:
        """A request's first byte; this and what follows httptools calls."""
        self.in_head = True
        self._url, self._fields = b"", []

    def on_url(self, url: bytes) -> None:
        """A piece of a request's target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of a request's headers. Trailers are not (RFC 9110 6.5.1): proxies check no such."""
        if self.in_head:
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """A request's head is complete."""
        self.in_head = False
        self._progressed = True
        parser, begin = self._parser, self._begin
        if begin is None or parser.should_upgrade():
            return
        version = parser.get_http_version()
        keep_alive = version != "1.0" and parser.should_keep_alive()
        head = RequestHead(parser.get_method(), self._url, version, self._fields, keep_alive)
        self._turn = begin(head)
        self.in_body = True
        self.body_left_bytes = int(head.headers.get(b"content-length", 0))

    def on_body(self, body: bytes) -> None:
        """A piece of a request's body."""
        self._progressed = True
        self.body_left_bytes -= len(body)
        if self._turn is not None:
            self._turn.take(body)

    def on_message_complete(self) -> None:
        """A request's last byte."""
        if self.in_body and self._turn is not None:
            self.in_body = False
            self._turn.end()

    def _feed(self, data: memoryview) -> HttpError | None:
        pieces = [data]
        while pieces:
            piece = pieces.pop()
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as offer:
                if self._parser.get_method() == b"CONNECT":
                    return HttpError(HTTPStatus.NOT_IMPLEMENTED, "CONNECT is not supported")
                pieces += [piece[offer.args[0] :], memoryview(self._declined_head())]
            except httptools.HttpParserError:
                return HttpError(HTTPStatus.BAD_REQUEST, "invalid HTTP request")
        return None

    def _declined_head(self) -> bytes:
        """Return the head just parsed, without its offer to upgrade, for a parser started afresh.

        An offer may be ignored (RFC 9110 7.8), but the parser skips the body of a request that
        makes one, and Java's client offers h2c by default.
        """
        parser = self._parser
        line = (parser.get_method(), self._url, parser.get_http_version().encode())
        self._parser = self._new_parser()
        kept = [pair for pair in self._fields if pair[0] not in {b"upgrade", b"http2-settings"}]
        head = [b"%b %b HTTP/%b\r\n" % line, *(b"%b: %b\r\n" % pair for pair in kept), b"\r\n"]
        return b"".join(head)

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # A request after the last one is not an error of the last one's.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser
