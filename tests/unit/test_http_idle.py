"""A connection is closed once it has been idle for long enough, and not before."""

import asyncio
from collections.abc import Callable, Iterator
from contextvars import Context

import pytest

from transports.http.idle import Idle


class Clock(asyncio.SelectorEventLoop):
    """A loop of which only the clock runs, as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.due: dict[asyncio.TimerHandle, Callable[[], None]] = {}

    def time(self) -> float:
        """Return the test's time."""
        return self.now_s

    def call_at(  # type: ignore[override] # less general: nothing here has arguments
        self, when: float, callback: Callable[[], None], *, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Keep ``callback`` for its time."""
        handle = asyncio.TimerHandle(when, callback, (), self, context)
        self.due[handle] = callback
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        del self.due[handle]

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        until_s = self.now_s + seconds
        while ready := [handle for handle in self.due if handle.when() <= until_s]:
            handle = min(ready, key=asyncio.TimerHandle.when)
            self.now_s = handle.when()
            self.due.pop(handle)()
        self.now_s = until_s


class Closed:
    """Counts how often a connection was closed."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


@pytest.fixture
def clock() -> Iterator[Clock]:
    made = Clock()
    yield made
    made.close()


def test_it_is_closed_when_its_time_has_come(clock: Clock) -> None:
    closed = Closed()
    Idle(clock, 10.0, closed).begin()
    clock.advance(9.9)
    assert closed.times == 0
    clock.advance(0.2)
    assert closed.times == 1
    assert not clock.due


def test_it_is_kept_while_requests_come_and_has_one_timer(clock: Clock) -> None:
    closed = Closed()
    idle = Idle(clock, 10.0, closed)
    for _ in range(100):
        idle.begin()
        clock.advance(3.0)
        idle.end()
        assert len(clock.due) <= 1
    idle.begin()
    clock.advance(9.9)
    assert closed.times == 0
    clock.advance(0.2)
    assert closed.times == 1


def test_a_long_request_is_not_idleness(clock: Clock) -> None:
    closed = Closed()
    idle = Idle(clock, 10.0, closed)
    idle.begin()
    idle.end()
    clock.advance(1000.0)
    assert closed.times == 0
    assert not clock.due


def test_nothing_runs_on_once_it_is_closed(clock: Clock) -> None:
    closed = Closed()
    idle = Idle(clock, 10.0, closed)
    idle.stop()
    idle.begin()
    idle.stop()
    assert not clock.due
    assert closed.times == 0
