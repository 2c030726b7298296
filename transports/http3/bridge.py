"""HTTP/3 messages <-> ASGI messages, for one request: no sockets, no clock, no QUIC library.

client -> receive_head -> Exchange      -> next_message -> app
          receive_body / disconnect
client <- Frames       <- Exchange.send <-              <- app

request:  head --body*--> ended          either side --disconnect--> gone
answer:   none --start--> started --last body--> ended
"""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from starlette.types import Message, Scope

from transports.http.whole import Fields

Headers = list[tuple[bytes, bytes]]
Address = tuple[str, int]

# RFC 9114 4.2: fields of a connection, which HTTP/3 messages must not carry.
_CONNECTION_FIELDS = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)


class MalformedRequest(Exception):  # noqa: N818 - RFC 9114's own word for it
    """The head is not that of a request (RFC 9114 4.1.2)."""


@dataclass(frozen=True, slots=True)
class Frames:
    """What to put on the stream: a HEADERS frame, a DATA frame, or both ends of nothing."""

    headers: Headers | None = None
    data: bytes = b""
    end: bool = False


def scope_of(headers: Headers, client: Address | None, server: Address) -> Scope:
    """Return the ASGI scope of a request's head. Raises MalformedRequest."""
    pseudo = {name: value for name, value in headers if name.startswith(b":")}
    try:
        method = pseudo[b":method"].decode("ascii")
        target = pseudo[b":path"].decode("ascii")
    except (KeyError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"no usable :method and :path: {error}") from error
    if not target.startswith("/"):
        raise MalformedRequest(":path does not start with a slash")
    path, _, query = target.partition("?")
    fields = [(name, value) for name, value in headers if not name.startswith(b":")]
    if b":authority" in pseudo:
        fields.insert(0, (b"host", pseudo[b":authority"]))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "3",
        "method": method,
        "scheme": "https",
        "path": unquote(path),
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "root_path": "",
        "headers": fields,
        "client": client,
        "server": server,
    }


class Exchange:
    """One request and its answer. Body bytes wait here until the app takes them."""

    def __init__(self, scope: Scope, standing: Sequence[tuple[bytes, bytes]]) -> None:
        self.scope = scope
        self.disconnected = False
        self.answered = False
        self._end: Message = {"type": "http.disconnect"}
        self._cut = False
        self._standing = standing
        self._chunks: list[bytes] = []
        self._request_ended = False
        self._end_told = False
        self._started = False

    def receive_body(self, data: bytes, ended: bool) -> None:
        """Take body bytes off the wire; nothing follows once ``ended``."""
        if data and not self.answered:
            self._chunks.append(data)
        self._request_ended = self._request_ended or ended

    def disconnect(self) -> None:
        """Note that the client takes no answer any more."""
        self.disconnected = True

    def cut(self, end: Message) -> None:
        """Give the app ``end``, a disconnect with a reason it may still answer."""
        self._cut, self._end = True, end

    @property
    def end(self) -> Message | None:
        """The disconnect, once the app is told nothing else."""
        return self._end if self.disconnected or self.answered or self._cut else None

    def rest(self) -> Message | None:
        """Return what is left of the body if all of it has arrived, else None."""
        whole = self._request_ended and not self._end_told and self.end is None
        return self.next_message() if whole else None

    def next_message(self) -> Message | None:
        """Return what the app is told next, or None while there is nothing new."""
        if (end := self.end) is not None:
            return end
        if self._end_told or not (self._chunks or self._request_ended):
            return None
        body = b"".join(self._chunks)
        self._chunks.clear()
        self._end_told = self._request_ended
        return {"type": "http.request", "body": body, "more_body": not self._request_ended}

    def send(self, message: Message) -> Frames | None:
        """Return the frames for one message of the app's; None if nobody would read them.

        Raises RuntimeError for a message out of turn.
        """
        if self.disconnected:
            return None
        turn = "http.response.body" if self._started else "http.response.start"
        if message["type"] != turn or self.answered:
            raise RuntimeError(f"{message['type']} is out of turn")
        if not self._started:
            self._started = True
            return Frames(headers=self._head(message))
        self.answered = not message.get("more_body", False)
        data = b"" if self.scope["method"] == "HEAD" else message.get("body", b"")
        return Frames(data=data, end=self.answered)

    def whole(self, status: int, headers: Fields) -> Headers | None:
        """Return the head of an answer whose body comes with it; None if it is to be sent."""
        if self.disconnected or self._started or self.scope["method"] != "POST":
            return None
        self._started = self.answered = True
        return [(b":status", b"%d" % status), *self._standing, *headers]

    def _head(self, message: Message) -> Headers:
        fields = [(name.lower(), value) for name, value in message.get("headers", ())]
        own = [(name, value) for name, value in fields if name not in _CONNECTION_FIELDS]
        return [(b":status", b"%d" % message["status"]), *self._standing, *own]
