"""Open-loop load on a real scheduler in virtual time: runs take as long as a cost model says."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.scheduler import Scheduler
from scheduler.types import Array, Batch, InferRequest, ModelSpec
from tests.fixtures.gates import HeldRun, Outputs
from tests.fixtures.manual_clock import clock, settle

WARM_UP_S = 0.1
MAX_BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Cost:
    """What a batch takes (seconds); ``noise`` is the standard deviation as a share of it."""

    overhead_s: float
    row_s: float
    noise: float = 0.0

    def batch_s(self, rows: int) -> float:
        """Return what a batch of ``rows`` takes, without noise."""
        return self.overhead_s + rows * self.row_s

    @property
    def capacity_rows_s(self) -> float:
        """Rows a second in full batches."""
        return MAX_BATCH_ROWS / self.batch_s(MAX_BATCH_ROWS)


@dataclass(frozen=True, slots=True)
class Load:
    """Arrivals at ``factor`` times what full batches would answer.

    ``sizes`` are the rows of the requests and ``priorities`` their classes, both drawn evenly.
    ``burst`` requests arrive together.
    """

    timeout_s: float
    sizes: tuple[int, ...] = (100,)
    priorities: tuple[int, ...] = (0,)
    burst: int = 1
    factor: float = 3.0
    duration_s: float = 1.0


@dataclass(slots=True)
class Tally:
    """What became of the requests that arrived after the warm-up.

    ``good_rows`` were answered in time; ``late`` requests were admitted and answered that time was
    up; ``batch_rows`` are those of each batch.
    """

    good_rows: int = 0
    answered: Counter[int] = field(default_factory=Counter)  # by priority
    late: Counter[int] = field(default_factory=Counter)  # by priority
    refused: Counter[int] = field(default_factory=Counter)  # by priority
    batch_rows: list[int] = field(default_factory=list)

    @property
    def late_share(self) -> float:
        """Return the share of the admitted that were not answered in time."""
        return self.late.total() / max(1, self.late.total() + self.answered.total())


class _Held(FakeBackend):
    """A fake whose runs wait for the simulation; scores are all 0."""

    def run(self, batch: Batch) -> Outputs:
        self.before_run(batch)
        return {"default": np.zeros(batch.rows, np.float32)}


class Simulation(Observer):
    """Put one load on one lane; to be run on a manual clock."""

    def __init__(self, cost: Cost, load: Load, seed: int = 0) -> None:
        self._cost, self._load = cost, load
        self._random = random.Random(seed)
        self._loop = clock()
        self._started_s = self._loop.time()
        self._events: asyncio.Queue[HeldRun | None] = asyncio.Queue()
        self._held: HeldRun | None = None
        self._done_s = 0.0
        self._in_run = False  # whether the lane is inside the backend, as it says itself
        self._inputs = {rows: _inputs(rows) for rows in load.sizes}
        self.tally = Tally()
        backend = _Held(FakeOptions(max_batch_rows=MAX_BATCH_ROWS))
        backend.before_run = self._hold
        options = SchedulerOptions(inline_below_s=0.0)
        self._scheduler = Scheduler(backend, options, self, lambda: None, self._loop.time)

    @property
    def goodput(self) -> float:
        """Rows answered in time, as a share of what full batches would answer."""
        seconds = self._load.duration_s - WARM_UP_S
        return self.tally.good_rows / seconds / self._cost.capacity_rows_s

    async def run(self) -> None:
        """Serve the load until everything is answered."""
        tasks = []
        for after_s, requests in self._arrivals():
            await self._finish_runs_before(self._started_s + after_s)
            counts = after_s >= WARM_UP_S
            tasks += [asyncio.create_task(self._ask(request, counts)) for request in requests]
            await self._quiet()
        while not all(task.done() for task in tasks):
            await self._finish_runs_before(self._loop.time() + self._load.timeout_s)
        await self._scheduler.close(grace_s=0.0)

    def queued(self, spec: ModelSpec, rows: int, requests: int, batches: int) -> None:
        """The scheduler has looked at its queue: a run may be on its way."""
        self._events.put_nowait(None)

    def _arrivals(self) -> Iterator[tuple[float, list[InferRequest]]]:
        load = self._load
        mean_rows = sum(load.sizes) / len(load.sizes)
        rate = load.factor * self._cost.capacity_rows_s / mean_rows / load.burst
        after_s = 0.0
        while (after_s := after_s + self._random.expovariate(rate)) < load.duration_s:
            yield after_s, [self._request() for _ in range(load.burst)]

    def _request(self) -> InferRequest:
        rows = self._random.choice(self._load.sizes)
        priority = self._random.choice(self._load.priorities)
        return InferRequest(
            "fake", rows, self._inputs[rows], timeout_s=self._load.timeout_s, priority=priority
        )

    async def _ask(self, request: InferRequest, counts: bool) -> None:
        tally = self.tally if counts else Tally()
        try:
            await self._scheduler.infer(request)
        except ServingError as error:
            ends = {Code.OVERLOADED: tally.refused, Code.DEADLINE_EXCEEDED: tally.late}
            ends[error.code][request.priority] += 1
        else:
            tally.answered[request.priority] += 1
            tally.good_rows += request.rows

    def _hold(self, batch: Batch) -> None:
        run = HeldRun(batch)
        self._in_run = True
        self._loop.call_soon_threadsafe(self._events.put_nowait, run)
        run.wait()

    async def _finish_runs_before(self, until_s: float) -> None:
        while self._held is not None and self._done_s <= until_s:
            self._loop.advance(self._done_s - self._loop.time())
            await settle()  # deadlines before the answers
            self._let_go(self._held)
            self._held = None
            await self._events.get()
            await self._quiet()
        self._loop.advance(until_s - self._loop.time())
        await self._quiet()

    def _let_go(self, held: HeldRun) -> None:
        """Finish a run and block until its lane has begun what was gathered for it, or is idle.

        Else the loop might look at that batch before or after the lane has counted who in it is
        still wanted, and no two simulations of one load would be alike.
        """
        self._in_run = False
        held.finish()
        while not (self._in_run or all(job.outcomes for job in self._scheduler._runner._running)):
            time.sleep(0)

    async def _quiet(self) -> None:
        """Wait until the lane is held if it has anything to run, and the loop has nothing to do."""
        await settle()
        while self._held is None and len(self._scheduler._runner):
            self._begin(await self._events.get())
            await settle()
        while not self._events.empty():
            self._begin(self._events.get_nowait())

    def _begin(self, run: HeldRun | None) -> None:
        if run is not None:
            self._held = run
            noise = max(0.2, self._random.gauss(1.0, self._cost.noise))
            self._done_s = self._loop.time() + noise * self._cost.batch_s(run.batch.rows)
            self.tally.batch_rows.append(run.batch.rows)


def _inputs(rows: int) -> dict[str, Array]:
    """Return inputs with one id a bag."""
    return {
        "float_features": np.zeros((rows, 3), np.float32),
        "id_list_features.lengths": np.ones((2, rows), np.int64),
        "id_list_features.values": np.zeros(2 * rows, np.int64),
    }
