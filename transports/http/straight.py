"""Large bodies straight from the socket into the memory in which they are read.

On its usual way each piece of a body is copied five times on the event loop: out of the kernel, for
uvicorn's protocol, for its parser's callback, into what has come so far, for the app. Of a body
whose length is known the parser has nothing to say, so it may be passed by: an ASGI extension of
the listeners that allow it. Between pieces, each one turn of the loop, requests have theirs.
"""

import asyncio
import time
from collections.abc import Callable

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from scheduler.errors import ServingError
from transports.http.body import Straight
from transports.http.protocol import HttpProtocol
from transports.http.unsent import Unsent

STRAIGHT = "narsil.straight"
# What one turn of the event loop takes.
PIECE_BYTES = 128 * 1024
# Taken as fast as that, the event loop is busy with a body for a fiftieth of the time.
MOST_BYTES_PER_S = 64 * 1024 * 1024
# How often, and how many times, to ask whether a batch still computes before a piece is taken
# beside it. The loop's clock has no shorter ticks.
ASK_S = 1e-3
MOST_ASKED = 2


def straight_of(scope: Scope) -> Straight | None:
    """Return what takes the request's body past the parser, if its server can."""
    found: Straight | None = (scope.get("extensions") or {}).get(STRAIGHT)
    return found


class Arriving(asyncio.BufferedProtocol):
    """Reads what ``room`` has place for past its first ``taken`` bytes; ``over`` says if all came.

    A piece at a time, no more than MOST_BYTES_PER_S, and while ``idle`` if that comes soon.
    """

    def __init__(
        self,
        protocol: HttpProtocol,
        room: memoryview,
        taken: int,
        idle: Callable[[], bool],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.over: asyncio.Future[bool] = loop.create_future()
        self._protocol = protocol
        self._room = room
        self._taken = self._first = taken
        self._idle = idle
        self._asked = 0
        self._began_s = time.monotonic()
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take the connection over; nothing of it is being read."""
        self._protocol.transport.set_protocol(self)
        self._next()

    def stop(self) -> None:
        """Give the connection back, with nothing being read."""
        if self._timer is not None:
            self._timer.cancel()
        transport = self._protocol.transport
        if not transport.is_closing():
            transport.pause_reading()
        transport.set_protocol(self._protocol)

    def end(self, *, whole: bool) -> None:
        """Be over."""
        if not self.over.done():
            self.over.set_result(whole)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next piece goes; never past the body's end."""
        del sizehint
        return self._room[self._taken : self._taken + PIECE_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Count a piece, and read no other in the same turn of the loop."""
        self._taken += nbytes
        self._protocol.transport.pause_reading()
        if self._taken == len(self._room):
            self.end(whole=True)
        else:
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and let the protocol know."""
        self.end(whole=False)
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Let the protocol know."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Let the protocol know."""
        self._protocol.resume_writing()

    def _next(self) -> None:
        due_s = self._began_s + (self._taken - self._first) / MOST_BYTES_PER_S
        self._timer = self._loop.call_later(max(0.0, due_s - time.monotonic()), self._read_on)

    def _read_on(self) -> None:
        if self._asked < MOST_ASKED and not self._idle():
            self._asked += 1
            self._timer = self._loop.call_later(ASK_S, self._read_on)
        else:
            self._asked = 0
            self._protocol.transport.resume_reading()


class StraightProtocol(HttpProtocol):
    """An HTTP/1.1 connection whose bodies the app may take past the parser."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        head_timeout_s: float,
        unsent: Unsent,
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(config, state, head_timeout_s, unsent, on_lost)
        self._inner = self.app
        self.app = self._allow
        self._arriving: Arriving | None = None

    def cut(self, error: ServingError) -> None:
        """Make ``error`` the answer to every request that has none yet."""
        super().cut(error)
        if self._arriving is not None:
            self._arriving.end(whole=False)

    async def _allow(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[STRAIGHT] = self._take
        await self._inner(scope, receive, send)

    async def _take(self, room: memoryview, idle: Callable[[], bool]) -> bool:
        cycle = self._running
        if cycle is None or cycle.disconnected or self._fault(True) is not None:
            return False
        taken = len(cycle.body)
        room[:taken], cycle.body = cycle.body, bytearray()
        if not cycle.more_body:
            return True
        if cycle.waiting_for_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            cycle.waiting_for_100_continue = False
        return await self._arrive(cycle, room, taken, idle)

    async def _arrive(
        self, cycle: RequestResponseCycle, room: memoryview, taken: int, idle: Callable[[], bool]
    ) -> bool:
        """Let the rest of a body arrive, and have the parser wait for what follows it."""
        self.flow.pause_reading()
        arriving = self._arriving = Arriving(self, room, taken, idle)
        whole = False
        try:
            arriving.start()
            whole = await arriving.over
        finally:
            self._arriving = None
            arriving.stop()
            if whole:
                self._parse_afresh()
            elif not cycle.disconnected:  # within a body, where no parser would find its way
                self._stop_parsing()
                cycle.keep_alive = False
            if not self.transport.is_closing():
                self.flow.resume_reading()
        return whole

    def _parse_afresh(self) -> None:
        """Begin with the next request: this one is complete."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._body_left_bytes = 0
        self.on_message_complete()
