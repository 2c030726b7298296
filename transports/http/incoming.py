"""The body of an inference request over HTTP/1.1 as it arrives, and what may end the request."""

import asyncio

from starlette.types import Message
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from scheduler.errors import ServingError
from transports.http.connection import Connection
from transports.http.problem import HttpError
from transports.http.receiving import Ended, ended


class Incoming:
    """The ``receive`` of one request: its connection gives it what is parsed.

    ``gone``: nobody takes an answer any more. ``waits``: the client sends its body when told to.
    No class of ours is its base: what mypyc makes of a ``__call__`` that is added to one crashes.
    """

    def __init__(self, connection: Connection, waits: bool) -> None:
        self.gone = False
        self.waits = waits
        self._connection = connection
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._whole = False
        self._changed = False
        self._news: asyncio.Event | None = None  # made if somebody has to wait
        self._error: ServingError | HttpError | None = None
        self._told: Ended | None = None

    def take(self, piece: bytes) -> None:
        """Take a piece of the body off the wire."""
        self._pieces.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > HIGH_WATER_LIMIT:
            self._connection.flow.pause_reading()
        self._tell()

    def end(self) -> None:
        """Note that the body is whole."""
        self._whole = True
        self._tell()

    def wake(self) -> None:
        """Look at what may have come to an end."""
        self._tell()
        self._look()

    async def __call__(self) -> Message:
        """Return the next message, as ASGI has it."""
        connection = self._connection
        if self._error is not None:  # and has been answered, since there is more to receive
            connection.linger()
            return ended(self._error)
        if self.waits and not connection.transport.is_closing():
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waits = False
        if not self.gone:
            connection.flow.resume_reading()
            await self._change()
        message: Message = {"type": "http.disconnect"} if self.gone else self._next()
        self._error = connection.fault(not self._whole)
        return message if self._error is None else ended(self._error)

    @property
    def ready(self) -> bool:
        """Whether the body is whole and nothing else is to be told."""
        if not self._whole or self.gone or self.waits or self._error is not None:
            return False
        return self._connection.fault(False) is None

    def at_once(self) -> Message | None:
        """Return the rest of the body if it is ``ready``, else None."""
        if not self.ready:
            return None
        self._connection.flow.resume_reading()
        self._changed = False
        return self._next()

    def watch(self, told: Ended | None) -> None:
        """Call ``told`` with the disconnect once it comes, perhaps at once; None: no more."""
        self._told = told
        self._look()

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
        elif self.gone:
            self._told({"type": "http.disconnect"})
