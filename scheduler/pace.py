"""Work beside requests in short turns: none of them should meet more than one."""

import time
from collections.abc import Callable

# As long as a turn lasts, at least (of the thread's CPU time), and how much longer a rest is.
TURN_S = 2e-4
REST = 3.0
# How often, and how many times, to ask whether a batch still computes before going on beside it.
ASK_S = 2e-4
MOST_ASKED = 6
# Whoever has taken so many times as long as it worked, and this on top, rests no more: where cores
# are short, sleepers wake late.
MOST_SHARE = 10
ALLOWED_S = 1e-2


def always() -> bool:
    """Return True: nobody is to be waited for."""
    return True


class Pace:
    """Let a thread work a quarter of the time, and while ``idle`` if that comes soon.

    A core that is busy next to it slows a forward, by its caches and its share of the memory; a
    turn that is short and comes between forwards slows none by much. Of one thread: ``worked_s``
    says how long it has worked so far.
    """

    def __init__(
        self,
        idle: Callable[[], bool] = always,
        worked_s: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._idle = idle
        self._worked_s = worked_s
        self._sleep = sleep
        self._now_s = now_s
        self._began_s = self._first_s = worked_s()
        self._started_s = now_s()

    def rest(self) -> None:
        """End the turn if it has lasted; to be called whenever work can be interrupted."""
        turn_s = self._worked_s() - self._began_s
        if turn_s >= TURN_S and not self._late():
            self._sleep(REST * turn_s)
            self.wait_for_idle()
            self._began_s = self._worked_s()

    def wait_for_idle(self) -> None:
        """Wait until nobody computes, a millisecond or so at most."""
        for _ in range(MOST_ASKED):
            if self._idle() or self._late():
                return
            self._sleep(ASK_S)

    def _late(self) -> bool:
        worked_s = self._worked_s() - self._first_s
        return self._now_s() - self._started_s > MOST_SHARE * worked_s + ALLOWED_S
