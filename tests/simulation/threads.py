"""Threads that move one at a time and only when told: what the lanes get for ``threading``.

Each is a real thread, so that the code under test runs as it is; but it and the event loop's
thread hand one baton to each other. Who moves next is the schedule's choice, so a seed repeats
exactly, and any thread can be left standing wherever it parks.
"""

import _thread  # a fraction of the cost of threading: there are twenty in a schedule
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler import execute, lanes, threads
from scheduler.lanes import Job

INSIDE_BACKEND = ("gather", "gather ahead", "compute")


class Unwind(BaseException):
    """End a parked thread whose schedule is over."""


def always() -> bool:
    return True


class SimulatedThread:
    """Stand in for ``threading.Thread``; it starts parked."""

    def __init__(
        self,
        crew: "Crew",
        target: Callable[..., object],
        args: Sequence[object] = (),
        name: str = "",
        daemon: bool = True,
    ) -> None:
        assert daemon, "no thread may hold up the end of the process"
        self.name = name
        self.parked_at = "start"
        self.ready: Callable[[], bool] = always
        self.holds: object = None
        self.held: object = None  # what it has just finished; the loop may not have heard of it
        self.unwinding = False
        self.outlived = False  # whoever joined it gave up
        self._crew = crew
        self._target = partial(target, *args)
        self._alive = False
        self._began = False
        self._go = _thread.allocate_lock()
        self._go.acquire()

    def start(self) -> None:
        self._alive = True
        self._crew.threads.append(self)

    def is_alive(self) -> bool:
        return self._alive

    def join(self, timeout: float) -> None:
        """Wait for the end, longer than ``timeout`` unless the thread is inside the backend."""
        give_up_s = self._crew.now() + timeout

        def outlived() -> bool:
            return self.parked_at in INSIDE_BACKEND and self._crew.now() >= give_up_s

        self._crew.park("join", lambda: not self._alive or outlived())
        self.outlived = self._alive

    def go(self) -> None:
        if self._began:
            self._go.release()
        else:
            self._began = True
            _thread.start_new_thread(self._main, ())

    def wait(self) -> None:
        self._go.acquire()
        if self.unwinding:
            raise Unwind

    def _main(self) -> None:
        try:
            if not self.unwinding:
                self._target()
        except (Unwind, SystemExit):
            pass
        except Exception as error:  # noqa: BLE001  # told when the loop next comes to rest
            self._crew.faults.append(error)
        finally:
            self._alive = False
            self._crew.threads.remove(self)
            self._crew.pass_back()


class SimulatedQueue:
    """Stand in for ``queue.SimpleQueue``."""

    def __init__(self, crew: "Crew") -> None:
        self.items: deque[object] = deque()
        self._crew = crew

    def put(self, item: object) -> None:
        if isinstance(item, Job):
            self._crew.submitted(item, self)
        self.items.append(item)
        self._crew.queues.add(self)

    def get(self) -> object:
        thread = self._crew.current
        assert thread is not None, "the event loop would block"
        thread.holds, thread.held = None, thread.holds
        self._crew.park("get", lambda: bool(self.items))
        thread.holds = self.items.popleft()
        if self._crew.dawdles():
            self._crew.park("got")
        return thread.holds


class Crew:
    """All threads of one schedule.

    ``submitted`` hears of each job on its way to a lane. ``dawdles`` says whether a thread that
    has just got a job stops short of beginning it. ``stall`` is called where the event loop's
    own thread does what would park another.
    """

    def __init__(
        self,
        now: Callable[[], float],
        submitted: Callable[[Job, SimulatedQueue], None],
        dawdles: Callable[[], bool],
        stall: Callable[[], None],
    ) -> None:
        self.now = now
        self.submitted = submitted
        self.dawdles = dawdles
        self.stall = stall
        self.faults: list[Exception] = []  # what ended a thread unexpectedly
        self.threads: list[SimulatedThread] = []
        self.queues: set[SimulatedQueue] = set()
        self.current: SimulatedThread | None = None
        self._back = _thread.allocate_lock()
        self._back.acquire()

    def runnable(self) -> list[SimulatedThread]:
        """Return the threads that could move now."""
        return [thread for thread in self.threads if thread.ready()]

    def step(self, thread: SimulatedThread) -> None:
        """Let ``thread`` move until it parks or ends."""
        self.current = thread
        thread.go()
        self._back.acquire()
        self.current = None

    def park(self, where: str, ready: Callable[[], bool] = always) -> None:
        """Stop the calling thread until it is stepped on; the event loop's only stalls."""
        thread = self.current
        if thread is None:
            self.stall()
            return
        thread.parked_at, thread.ready = where, ready
        self.pass_back()
        thread.wait()

    def pass_back(self) -> None:
        """Give the baton back to the event loop's thread."""
        self._back.release()

    def jobs(self) -> Iterator[Job]:
        """Yield every job that is queued for a thread, or in the hands of one."""
        things = [thread.holds for thread in self.threads]
        for inbox in self.queues:
            things += inbox.items
        yield from (thing for thing in things if isinstance(thing, Job))

    def unwind(self) -> None:
        """End every thread that is left."""
        while self.threads:
            self.threads[0].unwinding = True
            self.step(self.threads[0])

    @contextmanager
    def on_duty(self) -> Iterator[None]:
        """Let the scheduler make its threads and their queues here."""
        clock = SimpleNamespace(monotonic=self.now, perf_counter=self.now)
        makes: Any = SimpleNamespace(Thread=partial(SimulatedThread, self))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lanes, "threading", makes)
            patch.setattr(threads, "threading", makes)
            patch.setattr(
                lanes, "queue", SimpleNamespace(SimpleQueue=partial(SimulatedQueue, self))
            )
            patch.setattr(lanes, "time", clock)
            patch.setattr(execute, "time", clock)
            try:
                yield
            finally:
                self.unwind()
