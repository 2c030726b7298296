"""What leaves a connection: one write a turn of the loop, and none while the socket is full."""

import asyncio
import time
from collections.abc import Callable

import ngh2

# A call that streams waits while more than this of its answers has not left.
ROOM_BYTES = 64 * 1024
# What is taken at once when much waits: the socket may be full after it.
PIECE_BYTES = 1 << 20


class Output:
    """Write what ``h2`` has to say; ``after`` is called when that may have ended streams."""

    def __init__(
        self, h2: ngh2.Connection, transport: asyncio.Transport, after: Callable[[], None]
    ) -> None:
        self._h2 = h2
        self._transport = transport
        self._after = after
        self._call_soon = asyncio.get_running_loop().call_soon
        self._pending: asyncio.Handle | None = None
        self._room = asyncio.Event()
        self.full = False  # the socket is
        self.closed = False
        self.moved_s = time.perf_counter()  # when the client last took of an answer
        self._unread = False  # answers may be among what fills the socket

    @property
    def stuck(self) -> bool:
        """Whether something cannot leave: the socket is full, or a window shut."""
        return self.full or self._h2.queued_body_size() > 0

    def soon(self) -> None:
        """Write at the end of this turn of the loop, with what else comes up in it."""
        if self._pending is None:
            self._pending = self._call_soon(self.now)

    def flush(self) -> None:
        """Write now what was to be written soon, if anything."""
        if self._pending is not None:
            self._pending.cancel()
            self.now()

    def now(self) -> None:
        """Write what can leave."""
        self._pending = None
        if self.closed:
            return
        while not self.full:
            queued_bytes = self._h2.queued_body_size()
            much = queued_bytes > PIECE_BYTES
            data = self._h2.data_to_send(PIECE_BYTES if much else None)
            if data:
                if self._h2.queued_body_size() < queued_bytes:  # not pongs alone
                    self._moved()
                    self._unread = True
                self._transport.write(data)
            if not (much and data):
                break
        self._room.set()
        self._after()

    def pause(self) -> None:
        """The socket is full."""
        self.full = True

    def resume(self) -> None:
        """The socket has room again."""
        self.full = False
        if self._unread:
            self._unread = False
            self._moved()
        self.now()

    def close(self) -> None:
        """Write nothing more."""
        self.closed = True
        self._moved()  # what was written has its time from here
        self._room.set()

    def _moved(self) -> None:
        self.moved_s = time.perf_counter()

    async def room(self, stream_id: int) -> None:
        """Return when most of what the stream was given has left, or nothing will."""
        while not self.closed and (self.full or self._h2.queued_body_size(stream_id) > ROOM_BYTES):
            self._room.clear()
            await self._room.wait()
