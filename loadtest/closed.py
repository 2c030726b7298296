"""What goes wrong in a run, and the figures of one request after another."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


class RequestFailedError(Exception):
    """The server answered with an error: a status, and what it said."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status


class NoServerError(Exception):
    """Nobody answers at the address, or the connection is gone; says so in one sentence."""


@dataclass(slots=True)
class Failures:
    """How many requests failed, by status, and what the first failure said."""

    counts: Counter[str] = field(default_factory=Counter)
    first: str = ""

    def add(self, error: RequestFailedError) -> None:
        """Count one failed request."""
        self.first = self.first or str(error)
        self.counts[error.status] += 1

    def __str__(self) -> str:
        counts = ", ".join(f"{count} x {status}" for status, count in self.counts.most_common())
        return f"failed requests: {counts}; the first said {self.first}"


@dataclass(frozen=True, slots=True)
class Result:
    """Latencies of the measured part (seconds), in order of completion, and how long it took."""

    latencies_s: npt.NDArray[np.float64]
    elapsed_s: float
    failures: Failures

    @property
    def errors(self) -> int:
        """Return how many requests failed."""
        return self.failures.counts.total()

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
