"""The load of the soak, and what is looked at while it lasts."""

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from backends.fake import FakeOptions
from loadtest.lab import setting
from loadtest.lab.backends import CostBackend
from loadtest.lab.soak_loop import CountingLoop
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.types import Array, InferRequest, InferResponse

MAX_BATCH_ROWS = 256
SIZES = (1, 1, 1, 10, 10, 100, 700)  # rows; the last is larger than a batch
BATCH_S, ROW_S = 1e-3, 5e-6
ANSWERED, CANCELLED, WRONG = "answered", "cancelled", "wrong scores"
UNANSWERED_S = 10.0  # far beyond every request's own timeout


@dataclass(frozen=True, slots=True)
class Sample:
    """The state at one moment; ``answered_per_s`` is since the sample before."""

    at_s: float
    answered_per_s: float
    rss_mib: float
    timers: int
    tasks: int
    threads: int


@dataclass(slots=True)
class Outcomes:
    """What the requests came to; ``wrong`` has what must not be."""

    counts: Counter[str] = field(default_factory=Counter)
    swaps: int = 0
    wrong: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Case:
    """One request and its right scores."""

    request: InferRequest
    scores: Array


def make_backend() -> CostBackend:
    """Return a fresh backend; all score alike."""
    return CostBackend(FakeOptions(max_batch_rows=MAX_BATCH_ROWS), BATCH_S, ROW_S)


def make_cases(seed: int) -> list[Case]:
    """Return requests of all sizes and their scores."""
    score = make_backend().score
    requests = (
        request
        for rows in SIZES
        for request in setting.make_requests(setting.FAKE_SHAPE, rows, 40, seed + rows)
    )
    return [Case(request, score(request)) for request in requests]


class Soak:
    """Keep requests in flight until ``end_s`` (time.monotonic's)."""

    def __init__(self, engine: Engine, cases: Sequence[Case], seed: int, end_s: float) -> None:
        self.outcomes = Outcomes()
        self._engine = engine
        self._cases = cases
        self._random = random.Random(seed)  # noqa: S311  # a schedule, not a secret
        self._end_s = end_s

    async def worker(self) -> None:
        """Ask one request after the other."""
        while time.monotonic() < self._end_s:
            case = self._random.choice(self._cases)
            timeout_s = self._random.uniform(0.01, 0.2)
            request = replace(case.request, timeout_s=timeout_s)
            asking = asyncio.create_task(self._engine.infer(request))
            if self._random.random() < 0.1:
                await asyncio.sleep(self._random.uniform(0.0, 0.01))
                asking.cancel()
            self._count(await outcome(asking, case))

    async def swap(self, every_s: float) -> None:
        """Let a fresh backend take over, again and again."""
        while time.monotonic() + every_s < self._end_s:
            await asyncio.sleep(every_s)
            await self._engine.swap(make_backend())
            self.outcomes.swaps += 1

    async def sample(self, loop: CountingLoop, every_s: float) -> list[Sample]:
        """Look at everything that could creep, again and again."""
        begin_s = before_s = time.monotonic()
        answered, samples = 0, []
        while time.monotonic() + every_s < self._end_s:
            await asyncio.sleep(every_s)
            now, count = time.monotonic(), self.outcomes.counts[ANSWERED]
            samples.append(
                Sample(
                    at_s=now - begin_s,
                    answered_per_s=(count - answered) / (now - before_s),
                    rss_mib=rss_mib(),
                    timers=loop.live_timers(),
                    tasks=len(asyncio.all_tasks()),
                    threads=threading.active_count(),
                )
            )
            before_s, answered = now, count
        return samples

    def _count(self, word: str) -> None:
        self.outcomes.counts[word] += 1
        if word not in (ANSWERED, CANCELLED, Code.OVERLOADED.value, Code.DEADLINE_EXCEEDED.value):
            self.outcomes.wrong[word] += 1


async def outcome(asking: asyncio.Task[InferResponse], case: Case) -> str:
    """Wait for the answer to ``case``; return what it came to in a word or two."""
    done, _ = await asyncio.wait((asking,), timeout=UNANSWERED_S)
    if not done:
        asking.cancel()
        return "never answered"
    if asking.cancelled():
        return CANCELLED
    error = asking.exception()
    if isinstance(error, ServingError):
        return error.code.value
    right = np.array_equal(asking.result().outputs["default"], case.scores)
    return ANSWERED if right else WRONG


def rss_mib() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
