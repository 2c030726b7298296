"""An event loop that knows how many timers are armed."""

import asyncio
import weakref
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

import uvloop

Arguments = TypeVarTuple("Arguments")


class CountingLoop(uvloop.Loop):
    """The server's loop; ``live_timers`` counts what ``call_later`` and ``call_at`` armed.

    uvloop shows nobody its timers. Every handle is remembered weakly: it counts until it is
    cancelled or nobody has it any more, so one that fired and is still held counts too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._handles: weakref.WeakSet[asyncio.TimerHandle] = weakref.WeakSet()

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Arm a timer and remember it; uvloop's ``call_at`` comes by here too."""
        handle = super().call_later(delay, callback, *args, context=context)
        self._handles.add(handle)
        return handle

    def live_timers(self) -> int:
        """Return the timers that have been armed and not cancelled."""
        return sum(not handle.cancelled() for handle in self._handles)
