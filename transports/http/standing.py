"""The headers every answer carries."""

import asyncio
from collections.abc import Sequence
from email.utils import formatdate


class StandingHeaders:
    """``current`` is one list, kept up to date in place: server, date, and what is added."""

    def __init__(self, added: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.current = [(b"server", b"narsil"), _date(), *added]
        self._clock: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Refresh the date once a second, on the running loop."""
        self.current[1] = _date()
        self._clock = asyncio.get_running_loop().call_later(1.0, self.start)

    def stop(self) -> None:
        """Let the date stand."""
        if self._clock is not None:
            self._clock.cancel()


def _date() -> tuple[bytes, bytes]:
    return b"date", formatdate(usegmt=True).encode()
