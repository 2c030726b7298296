"""The headers every answer carries."""

import asyncio
from collections.abc import Callable, Sequence
from email.utils import formatdate

from scheduler.engine import Engine

# HTTP/1.1: come back over a new connection, which a load balancer takes elsewhere.
CLOSE = (b"connection", b"close")
# RFC 7838 3: forget that this server is also reached in another way.
ALT_SVC_CLEAR = (b"alt-svc", b"clear")


class StandingHeaders:
    """``current`` is one list, kept up to date in place: server, date, and what is added.

    While the engine drains, ``draining`` is in the place of ``added``.
    """

    def __init__(
        self,
        added: Sequence[tuple[bytes, bytes]] = (),
        draining: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.current = [(b"server", b"narsil"), _date(), *added]
        self._draining = draining
        self._clock: asyncio.TimerHandle | None = None
        self._unwatch: Callable[[], None] | None = None

    def follow(self, engine: Engine) -> None:
        """Change once ``engine`` drains."""

        def changed() -> None:
            if engine.draining:
                self.current[2:] = self._draining

        self._unwatch = engine.watch(changed)

    def start(self) -> None:
        """Refresh the date once a second, on the running loop."""
        self.current[1] = _date()
        self._clock = asyncio.get_running_loop().call_later(1.0, self.start)

    def stop(self) -> None:
        """Let them stand."""
        if self._clock is not None:
            self._clock.cancel()
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None


def _date() -> tuple[bytes, bytes]:
    return b"date", formatdate(usegmt=True).encode()
