"""Closed loop: a fixed number of requests in flight, each sent when the one before is answered."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Send = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Result:
    """Latencies of the measured part (seconds), in order of completion, and how long it took."""

    latencies_s: npt.NDArray[np.float64]
    elapsed_s: float
    errors: int

    def summary(self, rows: int) -> dict[str, float]:
        """Return counts and, if there were answers, requests/s, samples/s and percentiles (ms)."""
        counts: dict[str, float] = {"requests": len(self.latencies_s), "errors": self.errors}
        if not len(self.latencies_s):
            return counts
        percentiles = np.percentile(self.latencies_s, [50, 90, 99, 100]) * 1e3
        names = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
        rate = len(self.latencies_s) / self.elapsed_s
        return {
            **counts,
            "requests_per_s": round(rate, 1),
            "samples_per_s": round(rate * rows, 1),
            **{name: round(float(v), 3) for name, v in zip(names, percentiles, strict=True)},
        }


async def run(
    senders: Sequence[Send], bodies: Sequence[bytes], warmup_s: float, measure_s: float
) -> Result:
    """Keep one request in flight for each sender; forget what completes in the warm-up."""
    begin_s = time.perf_counter() + warmup_s
    end_s = begin_s + measure_s
    latencies: list[float] = []
    errors = 0

    async def worker(send: Send, position: int) -> None:
        nonlocal errors
        while (started_s := time.perf_counter()) < end_s:
            body = bodies[position % len(bodies)]
            position += len(senders)
            try:
                await send(body)
            except RequestFailedError:
                errors += 1
                continue
            done_s = time.perf_counter()
            if done_s >= begin_s:
                latencies.append(done_s - started_s)

    async with asyncio.TaskGroup() as group:
        for number, send in enumerate(senders):
            group.create_task(worker(send, number))
    return Result(np.array(latencies), time.perf_counter() - begin_s, errors)


class RequestFailedError(Exception):
    """The server answered with an error."""
