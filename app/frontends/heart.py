"""Whether the other side of a channel goes on: each says so, several times within a limit."""

import asyncio
from collections.abc import Callable

from app.frontends.channel import Channel
from app.frontends.wire import Frame, Kind

# Within the limit; a beat that is missed is one this side had the time to see missing, so that its
# own stall, or that of the whole machine, counts once however long it lasts.
_BEATS = 5


class Heart:
    """Beat on ``channel``; call ``silent`` once nothing has come by it for ``limit_s`` seconds.

    It is called again if that happens again. A limit of 0 is none, and there are no beats.
    """

    def __init__(self, channel: Channel, limit_s: float, silent: Callable[[], None]) -> None:
        self._channel = channel
        self._period_s = limit_s / _BEATS
        self._silent = silent
        self._seen = channel.received_packets
        self._missed = 0
        self._timer: asyncio.TimerHandle | None = None
        if limit_s:
            self._beat()

    def stop(self) -> None:
        """Beat no more, and say nothing of silence."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        if not self._channel.waiting_bytes:  # else it hears enough, once it listens
            self._channel.send(Frame(Kind.BEAT))
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._look)

    def _look(self) -> None:
        if not self._channel.open:
            return
        received = self._channel.received_packets
        self._missed = self._missed + 1 if received == self._seen else 0
        self._seen = received
        self._beat()
        if self._missed == _BEATS:
            self._silent()
