"""Open loop: requests are sent when their time has come, whether or not others were answered.

A thread sends, as a network would, so the loop being busy delays no send; latency counts from when
a request was to be sent, so no delay is forgiven.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from loadtest.lab import stats
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.threads import run_in_thread
from scheduler.types import InferRequest

# Above it the generator, not the server, would have shaped the result.
MOST_LAG_S = 1e-3


@dataclass(slots=True)
class Tally:
    """What became of every request of one run; all latencies from the intended send (seconds).

    ``answered_s`` and ``expired_s`` are of requests that were let in, ``refused_s`` of those that
    were not; ``lags_s`` says how late each was sent. They were sent over ``seconds``; the last was
    answered ``elapsed_s`` after the start.
    """

    offered: int
    seconds: float
    timeout_s: float
    elapsed_s: float = 0.0
    lags_s: list[float] = field(default_factory=list)
    answered_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    expired_s: list[float] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        """Whether the generator kept its schedule."""
        return stats.percentile(self.lags_s, 0.99) <= MOST_LAG_S

    @property
    def goodput(self) -> float:
        """Requests a second that were answered in time.

        Over the time until the last answer, else what waited at the end would be counted on top.
        """
        return sum(latency <= self.timeout_s for latency in self.answered_s) / self.elapsed_s

    @property
    def accepted_s(self) -> list[float]:
        """Latencies of what was let in; infinite for what was then not answered in time."""
        return [*self.answered_s, *(math.inf for _ in self.expired_s)]

    def figures(self) -> dict[str, float]:
        """Return the figures of this run: rates in requests a second, times in ms."""
        rates = {
            "offered": self.offered / self.seconds,
            "goodput": self.goodput,
            "refused": len(self.refused_s) / self.seconds,
            "expired": len(self.expired_s) / self.seconds,
        }
        times = {
            "accepted_p50_ms": stats.percentile(self.accepted_s, 0.5),
            "accepted_p99_ms": stats.percentile(self.accepted_s, 0.99),
            "answered_p99_ms": stats.percentile(self.answered_s, 0.99),
            "refused_p50_ms": stats.percentile(self.refused_s, 0.5),
            "lag_p50_ms": stats.percentile(self.lags_s, 0.5),
            "lag_p99_ms": stats.percentile(self.lags_s, 0.99),
            "lag_max_ms": max(self.lags_s),
        }
        return {**rates, **{name: 1e3 * value for name, value in times.items()}}


def poisson(rate: float, seconds: float, seed: int) -> npt.NDArray[np.float64]:
    """Return when to send (seconds from the start), ``rate`` a second, independent of each other.

    There are exactly rate * seconds of them: so are Poisson arrivals whose number is given.
    """
    rng = np.random.default_rng(seed)
    return np.sort(rng.uniform(0.0, seconds, max(1, round(rate * seconds))))


async def run(
    engine: Engine,
    requests: Sequence[InferRequest],
    due_s: npt.NDArray[np.float64],
    timeout_s: float,
) -> Tally:
    """Send one of ``requests`` at each of ``due_s``; return once each has its answer.

    A request's time runs from when it was to be sent: what the generator loses, it loses too.
    """
    tally = Tally(len(due_s), float(due_s[-1]), timeout_s)
    loop = asyncio.get_running_loop()
    begin_s = time.monotonic() + 0.01
    tasks: list[asyncio.Task[None]] = []

    def start(number: int) -> None:
        request = requests[number % len(requests)]
        tasks.append(loop.create_task(_ask(engine, request, begin_s + due_s[number], tally)))

    def send_all() -> None:
        for number, offset_s in enumerate(due_s):
            wait_s = begin_s + offset_s - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            tally.lags_s.append(time.monotonic() - begin_s - offset_s)
            loop.call_soon_threadsafe(start, number)

    await run_in_thread(send_all, "generator")
    await asyncio.gather(*tasks)
    tally.elapsed_s = time.monotonic() - begin_s
    return tally


async def _ask(engine: Engine, request: InferRequest, intended_s: float, tally: Tally) -> None:
    left_s = intended_s + tally.timeout_s - time.monotonic()
    try:
        if left_s <= 0:
            raise ServingError(Code.DEADLINE_EXCEEDED, "the loop came too late to it")
        await engine.infer(replace(request, timeout_s=left_s))
    except ServingError as error:
        outcome = {Code.OVERLOADED: tally.refused_s, Code.DEADLINE_EXCEEDED: tally.expired_s}
        if error.code not in outcome:
            raise
        outcome[error.code].append(time.monotonic() - intended_s)
    else:
        tally.answered_s.append(time.monotonic() - intended_s)
