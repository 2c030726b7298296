"""The clock of a connection between requests."""

import asyncio
import math
from collections.abc import Callable


class Idle:
    """Calls ``close`` once nothing has come for ``keep_alive_s`` seconds.

    A timer a request would cost 2 us: there is one, which looks again when it is due.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, keep_alive_s: float, close: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._keep_alive_s = keep_alive_s
        self._close = close
        self._until_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """An answer has left, and nothing is under way."""
        self._until_s = self._loop.time() + self._keep_alive_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._until_s, self._look)

    def end(self) -> None:
        """Something has come."""
        self._until_s = math.inf

    def stop(self) -> None:
        """The connection is closed."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._until_s <= self._loop.time():
            self._close()
        elif self._until_s < math.inf:
            self._timer = self._loop.call_at(self._until_s, self._look)
