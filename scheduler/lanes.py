"""The compute threads of one model: they take jobs from the loop and post them back done.

All lanes take from one inbox, so a slow one never holds what a free one could run. One more
thread gathers a batch ahead while the lanes compute, and puts it into the same inbox: whichever
lane is free first goes on at once, without a word from the event loop.
"""

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from scheduler.backend import Backend
from scheduler.execute import Execution, Outcome, Prepared, execute, prepare
from scheduler.rows import cut
from scheduler.types import Batch
from scheduler.waiting import Piece

logger = logging.getLogger(__name__)

Clock = Callable[[], float]
Wanted = Callable[[Piece], bool]


class Job:
    """One batch on its way through a lane. The loop reads it once it is done.

    ``outcomes`` has one entry per piece, None for a piece that nobody wanted any more when the
    lane began; ``rows`` and ``ids`` are then those of the others. ``started_s`` is on the
    scheduler's clock, infinite until a lane has begun.
    """

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        self.pieces = pieces
        self._count(pieces)
        self.lane = 0
        self.ahead = False  # whether it was gathered before it started
        self.started_s = math.inf
        self._step_s = math.inf  # when the step that it is in began
        self.gather_s = 0.0
        self.compute_s = 0.0
        self.outcomes: tuple[Outcome | None, ...] = ()
        self.runs = 0
        self.lost = ""
        self._prepared: Prepared | None = None

    def _count(self, pieces: tuple[Piece, ...]) -> None:
        self.rows = sum([piece.rows for piece in pieces])
        self.ids = sum([piece.ids for piece in pieces])

    def elapsed_s(self, now: float) -> float:
        """Return how long a lane has been at it; 0 if none has begun."""
        return max(0.0, now - self.started_s)

    def stuck_s(self, now: float) -> float:
        """Return how long it has been gathered or run; 0 in between."""
        return max(0.0, now - self._step_s)

    def gather(self, backend: Backend, clock: Clock) -> None:
        """Gather the batch ahead."""
        self._step_s = clock()
        self._prepared = prepare(backend, self._batch(backend, self.pieces))
        self._step_s = math.inf

    def run(self, backend: Backend, wanted: Wanted, clock: Clock, lane: int) -> None:
        """Run what is still ``wanted``; nothing else reaches the backend."""
        self.lane = lane
        self.started_s = self._step_s = clock()
        chosen = tuple(filter(wanted, self.pieces))
        if len(chosen) < len(self.pieces):
            self._count(chosen)
        if len(chosen) == len(self.pieces) and self._prepared is not None:
            self.ahead = True
            self._conclude(chosen, execute(backend, self._prepared.batch, self._prepared))
        elif chosen:
            self._conclude(chosen, execute(backend, self._batch(backend, chosen)))
        else:
            self.outcomes = (None,) * len(self.pieces)
        self._prepared = None
        self._step_s = math.inf

    def lose(self, backend: Backend, why: str) -> None:
        """End with nothing computed: the thread that ran it, or the device, is gone."""
        execution = Execution(backend, len(self.pieces))
        execution.lose(why)
        self._conclude(self.pieces, execution)

    def _conclude(self, chosen: tuple[Piece, ...], execution: Execution) -> None:
        if len(chosen) == len(self.pieces):
            self.outcomes = tuple(execution.outcomes)
        else:
            outcomes = dict(zip(chosen, execution.outcomes, strict=True))
            self.outcomes = tuple(map(outcomes.get, self.pieces))
        self.gather_s, self.compute_s = execution.gather_s, execution.compute_s
        self.runs, self.lost = execution.runs, execution.lost

    def _batch(self, backend: Backend, pieces: tuple[Piece, ...]) -> Batch:
        spec = backend.spec
        return Batch(
            tuple(
                piece.waiting.request
                if piece.whole
                else cut(spec, piece.waiting.request, piece.start, piece.stop)
                for piece in pieces
            )
        )


def _nobody(piece: Piece) -> bool:
    del piece
    return False


class Lanes:
    """Run jobs, as many at once as the backend has lanes, and gather one more ahead.

    ``done`` and ``died`` are called on the loop: after each job, and if a thread ends without
    being told to. The hand-off is a SimpleQueue one way and one ``call_soon_threadsafe`` a job the
    other: a third of what an executor costs. ``wanted`` is asked on a lane's thread.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        wanted: Wanted,
        done: Callable[[Job], None],
        died: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._wanted = wanted
        self._done = done
        self._died = died
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ahead: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        name = backend.spec.name
        self._threads = [
            self._thread(f"{name}-lane-{number}", partial(self._run, number))
            for number in range(backend.lanes)
        ]
        self._threads.append(self._thread(f"{name}-gather", self._gather))
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job, *, ahead: bool = False) -> None:
        """Run ``job`` on the next free lane; ``ahead`` says that none is free now."""
        (self._ahead if ahead else self._inbox).put(job)

    def stop(self) -> None:
        """End the threads after what has been submitted."""
        self._ahead.put(None)  # its thread stops the lanes

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads to end; return whether they did."""
        give_up_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, give_up_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _thread(self, name: str, step: Callable[[], bool]) -> threading.Thread:
        return threading.Thread(target=self._serve, args=(name, step), name=name, daemon=True)

    def _serve(self, name: str, step: Callable[[], bool]) -> None:
        told_to_stop = False
        try:
            while step():
                pass
            told_to_stop = True
        finally:
            if step == self._gather:  # the lanes end after what has been gathered for them
                for _ in range(self._backend.lanes):
                    self._inbox.put(None)
            if not told_to_stop:
                logger.error("%s: the thread ended", name)
                self._post(self._died)

    def _run(self, number: int) -> bool:
        job = self._inbox.get()
        if job is None:
            return False
        job.run(self._backend, self._wanted, self._clock, number)
        if job.lost:
            self._wanted = _nobody  # no other batch may reach a device that is lost
        self._post(self._done, job)
        return True

    def _gather(self) -> bool:
        job = self._ahead.get()
        if job is None:
            return False
        job.gather(self._backend, self._clock)
        self._inbox.put(job)
        return True

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop was closed under a lane that outlived its grace
            logger.warning("answer dropped, the event loop is closed")
