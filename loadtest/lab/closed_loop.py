"""Closed loop: so many requests in flight, each asked when the one before it was answered."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Closed:
    """Latencies (seconds) in order of completion, and how long the run took."""

    latencies_s: list[float]
    elapsed_s: float

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies_s) / self.elapsed_s


async def run(ask: Callable[[], Awaitable[object]], in_flight: int, seconds: float) -> Closed:
    """Keep ``in_flight`` calls of ``ask`` going for so long, then wait for the last ones."""
    begin_s = time.perf_counter()
    end_s = begin_s + seconds
    latencies_s: list[float] = []

    async def worker() -> None:
        while (sent_s := time.perf_counter()) < end_s:
            await ask()
            latencies_s.append(time.perf_counter() - sent_s)

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return Closed(latencies_s, time.perf_counter() - begin_s)
