"""One inference request over HTTP/1.1, with no ASGI between the parser and the call.

Its connection gives it the pieces of its body as they are parsed, and runs it as one task. It is
the ``receive`` that its body is read from, and writes its answer in one piece.

    request: pieces --end--> whole             either side --leave--> gone
    answer:  none --write--> started --finish--> complete
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.types import Message
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from scheduler.errors import ServingError
from transports.http.asked import Asked
from transports.http.call import Target
from transports.http.connection import Connection
from transports.http.head import own_id
from transports.http.inference import Inference
from transports.http.problem import MEDIA_TYPE, HttpError, unexpected_problem
from transports.http.receiving import Ended, ended, waits_to_be_asked
from transports.http.request_head import RequestHead
from transports.http.whole import Fields

logger = logging.getLogger(__name__)

_CLOSE = (b"connection", b"close")


class Exchange(Asked):
    """A request and its answer."""

    def __init__(
        self,
        head: RequestHead,
        path: str,
        connection: Connection,
        inference: Inference,
        target: Target,
    ) -> None:
        super().__init__("POST", path, head.version, head.headers)
        self._connection = connection
        self._keep_alive = head.keep_alive
        self._inference = inference
        self._target = target
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._whole = self._gone = self._started = self._complete = False
        self._waits_to_be_asked = waits_to_be_asked(head.headers)
        self._changed = False
        self._news: asyncio.Event | None = None  # made if somebody has to wait
        self._error: ServingError | HttpError | None = None
        self._told: Ended | None = None

    @property
    def complete(self) -> bool:
        """Whether all of its answer has been written."""
        return self._complete

    def close_after(self) -> None:
        """Let the connection end with the answer."""
        self._keep_alive = False

    def take(self, piece: bytes) -> None:
        """Take a piece of its body off the wire."""
        if self._complete:
            return
        self._pieces.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > HIGH_WATER_LIMIT:
            self._connection.flow.pause_reading()
        self._tell()

    def end(self) -> None:
        """Note that its body is whole."""
        self._whole = True
        self._tell()

    def leave(self) -> None:
        """Note that nobody takes an answer any more."""
        self._gone = True
        self.wake()

    def wake(self) -> None:
        """Look at what may have come to an end."""
        self._tell()
        self._look()

    async def run(self) -> None:
        """Answer it."""
        await self._inference.answer(self._target, self, self)

    def ran(self, task: asyncio.Task[None]) -> None:
        """Answer what ``task``, which ran it, has left without an answer: a bug of ours."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a request failed for a reason nobody foresaw", exc_info=error)
        if self._complete or self._gone:
            return
        if self._started or error is None:
            self._connection.transport.close()
            return
        body = unexpected_problem().body(self.path)
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"x-request-id", own_id(self.headers).encode()),
            (b"content-length", b"%d" % len(body)),
        ]
        self._write(HTTPStatus.INTERNAL_SERVER_ERROR, headers, body)
        self._keep_alive = False  # as uvicorn does after it
        self._finish()

    async def __call__(self) -> Message:
        """Return the next message, as ASGI has it."""
        connection = self._connection
        if self._error is not None:  # and has been answered, since there is more to receive
            connection.linger()
            return ended(self._error)
        if self._waits_to_be_asked and not connection.transport.is_closing():
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._waits_to_be_asked = False
        if not self._gone and not self._complete:
            connection.flow.resume_reading()
            await self._change()
        if self._gone or self._complete:
            message: Message = {"type": "http.disconnect"}
        else:
            message = self._next()
        self._error = connection.fault(not self._whole)
        return message if self._error is None else ended(self._error)

    def at_once(self) -> Message | None:
        """Return the rest of the body if it is whole and nothing else is to be told, else None."""
        if (
            not self._whole
            or self._gone
            or self._complete
            or self._waits_to_be_asked
            or self._error is not None
            or self._connection.fault(False) is not None
        ):
            return None
        self._connection.flow.resume_reading()
        self._changed = False
        return self._next()

    def watch(self, told: Ended | None) -> None:
        """Call ``told`` with the disconnect once it comes, perhaps at once; None: no more."""
        self._told = told
        self._look()

    async def answer(self, status: int, headers: Fields, body: bytes) -> None:
        """Write all of an answer, once the client has taken enough of those before."""
        if await self._writable():
            self._write(status, headers, body)
            self._finish()

    async def answer_early(
        self, status: int, headers: Fields, body: bytes, drain: Callable[[], Awaitable[None]]
    ) -> None:
        """Write an answer, and go on once ``drain`` has swallowed what is still coming."""
        if await self._writable():
            self._write(status, headers, body)
        await drain()
        if await self._writable():
            self._finish()

    def _tell(self) -> None:
        self._changed = True
        if self._news is not None:
            self._news.set()

    async def _change(self) -> None:
        if not self._changed:
            self._news = asyncio.Event()
            await self._news.wait()
            self._news = None
        self._changed = False

    def _next(self) -> Message:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces, self._held_bytes = [], 0
        return {"type": "http.request", "body": body, "more_body": not self._whole}

    def _look(self) -> None:
        """Tell the watcher if this is the end."""
        if self._told is None:
            return
        error = self._connection.fault(False)
        if error is not None:
            self._told(ended(error))
        elif self._gone:
            self._told({"type": "http.disconnect"})

    async def _writable(self) -> bool:
        flow = self._connection.flow
        if flow.write_paused and not self._gone:
            await flow.drain()
        return not self._gone

    def _write(self, status: int, headers: Fields, body: bytes) -> None:
        connection = self._connection
        closes = _CLOSE in connection.standing or _CLOSE in headers
        lines = [STATUS_LINE[status]]
        for name, value in connection.standing:
            lines += (name, b": ", value, b"\r\n")
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        if closes:
            self._keep_alive = False
        elif not self._keep_alive:
            lines.append(b"connection: close\r\n")
        lines += (b"\r\n", body)
        self._started = True
        self._waits_to_be_asked = False
        connection.transport.write(b"".join(lines))

    def _finish(self) -> None:
        self._complete = True
        if not self._keep_alive:
            self._connection.transport.close()
        self._connection.answered()
