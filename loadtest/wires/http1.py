"""HTTP/1.1 with keep-alive: one request at a time on a connection."""

import httptools

from loadtest.closed import NoServerError
from loadtest.wires.base import Answer, Target, TcpWire
from transports.codecs.problem_json import problem_detail


class Http1Wire(TcpWire):
    """One connection; its parser is httptools'."""

    alpn = "http/1.1"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        fields = {"host": target.authority, **target.headers}
        lines = [f"POST {target.path} HTTP/1.1", *(f"{key}: {fields[key]}" for key in fields)]
        self._head = ("\r\n".join(lines) + "\r\ncontent-length: ").encode()
        self._out = b""
        self._ticket: int | None = None
        self._body = b""
        self._answers: list[Answer] = []
        self._parser = httptools.HttpResponseParser(self)

    @property
    def free(self) -> bool:
        """Say whether the request before is answered."""
        return self._ticket is None

    def ask(self, ticket: int, body: bytes) -> None:
        """Begin a request."""
        self._ticket = ticket
        self._out = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)

    def cancel(self, ticket: int) -> None:
        """Leave, and come back with a new connection: HTTP/1.1 knows no other way."""
        self.close()
        self._connect()
        self._ticket, self._out, self._body = None, b"", b""
        self._parser = httptools.HttpResponseParser(self)

    def _to_send(self) -> bytes:
        data, self._out = self._out, b""
        return data

    def _received(self, data: bytes) -> list[Answer]:
        self._answers = []
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise NoServerError(f"connection lost: no HTTP/1.1 comes back: {error}") from error
        return self._answers

    def on_body(self, body: bytes) -> None:
        """Keep a part of the answer; httptools calls it."""
        self._body += body

    def on_message_complete(self) -> None:
        """Complete the answer; httptools calls it."""
        ticket, self._ticket = self._ticket, None
        body, self._body = self._body, b""
        code = self._parser.get_status_code()
        if ticket is None or code < 200:
            return
        status, detail = ("", "") if code == 200 else (str(code), problem_detail(body))
        self._answers.append(Answer(ticket, status, detail, body))
