"""One inference request over HTTP/1.1, with no ASGI between the parser and the call.

Its connection gives it the pieces of its body as they are parsed, and begins it once what has come
is parsed. The answer is written in one piece: without a task, if nothing is waited for.

    answer: none --write--> started --finish--> complete
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from transports.http.asked import AskedAtOnce
from transports.http.call import Target
from transports.http.connection import Connection
from transports.http.head import own_id
from transports.http.incoming import Incoming
from transports.http.inference import Inference
from transports.http.problem import MEDIA_TYPE, unexpected_problem
from transports.http.receiving import waits_to_be_asked
from transports.http.request_head import RequestHead
from transports.http.whole import Fields

logger = logging.getLogger(__name__)

_CLOSE = (b"connection", b"close")


class Exchange(AskedAtOnce):
    """A request and its answer; ``complete`` once all of that has been written."""

    def __init__(
        self,
        head: RequestHead,
        path: str,
        connection: Connection,
        inference: Inference,
        target: Target,
    ) -> None:
        super().__init__("POST", path, head.version, head.headers)
        self.complete = False
        self._connection = connection
        self._keep_alive = head.keep_alive
        self._inference = inference
        self._target = target
        self._incoming = Incoming(connection, waits_to_be_asked(head.headers))
        self._started = False

    def close_after(self) -> None:
        """Let the connection end with the answer."""
        self._keep_alive = False

    def take(self, piece: bytes) -> None:
        """Take a piece of its body off the wire."""
        if not self.complete:
            self._incoming.take(piece)

    def end(self) -> None:
        """Note that its body is whole."""
        self._incoming.end()

    def leave(self) -> None:
        """Note that nobody takes an answer any more."""
        self._incoming.gone = True
        self._incoming.wake()

    def wake(self) -> None:
        """Look at what may have come to an end."""
        self._incoming.wake()

    def begin(self) -> None:
        """Answer it: at once if it is whole, else in a task."""
        if not self._inference.begin(self._target, self, self._incoming):
            self.go_on(self._inference.answer(self._target, self, self._incoming))

    def go_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what has to wait in a task."""
        self._connection.in_task(work).add_done_callback(self._ran)

    def failed(self, error: BaseException) -> None:
        """Answer a bug of ours, if it is not answered yet."""
        logger.error("a request failed for a reason nobody foresaw", exc_info=error)
        if self._unwanted():
            return
        if self._started:
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

    def answer_now(self, status: int, headers: Fields, body: bytes) -> bool:
        """Write all of an answer, if anybody takes one; False if that has to wait."""
        if self._unwanted():
            return True
        if self._connection.flow.write_paused:
            return False
        self._write(status, headers, body)
        self._finish()
        return True

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

    def _ran(self, task: asyncio.Task[None]) -> None:
        """See to what ``task`` has left without an answer."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failed(error)
        elif not self._unwanted():
            self._connection.transport.close()

    async def _writable(self) -> bool:
        flow = self._connection.flow
        if flow.write_paused and not self._unwanted():
            await flow.drain()
        return not self._unwanted()

    def _unwanted(self) -> bool:
        """Return whether an answer has nobody to take it, or they were given one."""
        return self.complete or self._incoming.gone

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
        self._incoming.waits = False
        connection.transport.write(b"".join(lines))

    def _finish(self) -> None:
        self.complete = True
        if not self._keep_alive:
            self._connection.transport.close()
        self._connection.answered()
