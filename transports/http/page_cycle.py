"""A request over HTTP/1.1 that is not for inference: an ASGI app's, by uvicorn's own cycle."""

import asyncio
import logging

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn._types import HTTPScope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

from scheduler.errors import ServingError
from transports.http.connection import Connection
from transports.http.problem import HttpError
from transports.http.receiving import ended, waits_to_be_asked
from transports.http.request_head import RequestHead

logger = logging.getLogger("uvicorn.error")


class PageCycle:
    """What an ``Exchange`` is to inference; the ``receive`` of its app, too.

    It knows ends of the server's making, which uvicorn does not.
    """

    def __init__(self, head: RequestHead, path: str, connection: Connection, app: ASGIApp) -> None:
        self._connection = connection
        self._app = app
        self._error: ServingError | HttpError | None = None
        self._cycle = RequestResponseCycle(
            scope=_scope(head, path, connection.transport),
            transport=connection.transport,
            flow=connection.flow,
            logger=logger,
            access_logger=logger,
            access_log=False,
            default_headers=connection.standing,
            message_event=asyncio.Event(),
            expect_100_continue=waits_to_be_asked(head.headers),
            keep_alive=head.keep_alive,
            on_response=connection.answered,
        )

    @property
    def complete(self) -> bool:
        """Whether all of its answer has been written."""
        return self._cycle.response_complete

    def close_after(self) -> None:
        """Let the connection end with the answer."""
        self._cycle.keep_alive = False

    def take(self, piece: bytes) -> None:
        """Take a piece of its body off the wire."""
        cycle = self._cycle
        if cycle.response_complete:
            return
        cycle.body += piece
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self._connection.flow.pause_reading()
        cycle.message_event.set()

    def end(self) -> None:
        """Note that its body is whole."""
        if not self._cycle.response_complete:
            self._cycle.more_body = False
            self._cycle.message_event.set()

    def leave(self) -> None:
        """Note that nobody takes an answer any more."""
        self._cycle.disconnected = True
        self.wake()

    def wake(self) -> None:
        """Look at what may have come to an end."""
        self._cycle.message_event.set()

    def begin(self) -> None:
        """Answer it, in a task."""
        work = self._cycle.run_asgi(self._serve)  # type: ignore[arg-type] # typed dicts
        self._connection.in_task(work)

    async def __call__(self) -> Message:
        """Return the next message, as ASGI has it."""
        if self._error is not None:  # and has been answered, since there is more to receive
            self._connection.linger()
            return ended(self._error)
        message: Message = await self._cycle.receive()  # type: ignore[assignment] # typed dicts
        self._error = self._connection.fault(message.get("more_body", False))
        return message if self._error is None else ended(self._error)

    async def _serve(self, scope: Scope, _receive: Receive, send: Send) -> None:
        await self._app(scope, self, send)


def _scope(head: RequestHead, path: str, transport: asyncio.Transport) -> HTTPScope:
    url = httptools.parse_url(head.url)
    query: bytes | None = getattr(url, "query", None)  # its stub says bytes, and mypyc believes it
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.version,
        "server": get_local_addr(transport),
        "client": get_remote_addr(transport),
        "scheme": "https" if is_ssl(transport) else "http",
        "method": head.method.decode("ascii"),
        "root_path": "",
        "path": path,
        "raw_path": url.path,
        "query_string": query or b"",
        "headers": head.fields,
        "state": {},
    }
