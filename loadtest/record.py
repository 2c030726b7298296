"""What became of the requests of one run, and how it is added up over generator processes."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from loadtest.closed import Failures, RequestFailedError
from loadtest.histogram import Histogram

MOST_WINDOWS = 60


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run, or one process's part of it. Times in seconds.

    ``response`` counts from the intended send, ``service`` from the actual one, ``lag`` is how
    late the generator came to each send. ``windows`` are the responses by when they came.
    Failed requests are in ``failures`` only. ``ends`` says what became of the requests that were
    "in_flight" when the server was told to stop, and of the "later" ones, which are nowhere else.
    """

    offered: int
    measure_s: float
    elapsed_s: float
    sending_s: float
    response: Histogram
    service: Histogram
    lag: Histogram
    windows: tuple[Histogram, ...]
    failures: Failures
    mismatches: int
    unanswered: int
    cancelled: int
    cpu_s: float
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def answered(self) -> int:
        """Return how many requests were answered without an error."""
        return self.response.total

    @property
    def errors(self) -> int:
        """Return how many requests failed, those without an answer among them."""
        return self.failures.counts.total()

    @property
    def window_s(self) -> float:
        """Return how long each window is."""
        return self.measure_s / len(self.windows)

    def __add__(self, other: "Outcome") -> "Outcome":
        first = self.failures.first or other.failures.first
        return Outcome(
            offered=self.offered + other.offered,
            measure_s=self.measure_s,
            elapsed_s=max(self.elapsed_s, other.elapsed_s),
            sending_s=max(self.sending_s, other.sending_s),
            response=self.response + other.response,
            service=self.service + other.service,
            lag=self.lag + other.lag,
            windows=tuple(a + b for a, b in zip(self.windows, other.windows, strict=True)),
            failures=Failures(self.failures.counts + other.failures.counts, first),
            mismatches=self.mismatches + other.mismatches,
            unanswered=self.unanswered + other.unanswered,
            cancelled=self.cancelled + other.cancelled,
            cpu_s=self.cpu_s + other.cpu_s,
            ends=self.ends + other.ends,
        )


def total(parts: Sequence[Outcome]) -> Outcome:
    """Add up the parts of one run."""
    first, *rest = parts
    for part in rest:
        first += part
    return first


def _doubles() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class Recorder:
    """Take notes during a run, as cheaply as can be; count them only in the end."""

    measure_s: float
    offered: int = 0
    sending_s: float = 0.0
    mismatches: int = 0
    unanswered: int = 0
    cancelled: int = 0
    failures: Failures = field(default_factory=Failures)
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    _done: "array[float]" = field(default_factory=_doubles)
    _response: "array[float]" = field(default_factory=_doubles)
    _service: "array[float]" = field(default_factory=_doubles)
    _lag: "array[float]" = field(default_factory=_doubles)

    def sent(self, at_s: float, lag_s: float) -> None:
        """Note a send, ``at_s`` after the measured part began."""
        self.offered += 1
        self.sending_s = at_s
        self._lag.append(lag_s)

    def answered(self, at_s: float, response_s: float, service_s: float) -> None:
        """Note an answer without an error."""
        self._done.append(at_s)
        self._response.append(response_s)
        self._service.append(service_s)

    def failed(self, status: str, detail: str) -> None:
        """Note a request that failed."""
        self.failures.add(RequestFailedError(status, detail))

    def outcome(self, elapsed_s: float, cpu_s: float) -> Outcome:
        """Count everything."""
        response = np.frombuffer(self._response, np.float64)
        return Outcome(
            offered=self.offered,
            measure_s=self.measure_s,
            elapsed_s=elapsed_s,
            sending_s=self.sending_s,
            response=Histogram.of(response),
            service=Histogram.of(np.frombuffer(self._service, np.float64)),
            lag=Histogram.of(np.frombuffer(self._lag, np.float64)),
            windows=self._windows(response),
            failures=Failures(Counter(self.failures.counts), self.failures.first),
            mismatches=self.mismatches,
            unanswered=self.unanswered,
            cancelled=self.cancelled,
            cpu_s=cpu_s,
            ends=self.ends,
        )

    def _windows(
        self, response: "np.ndarray[tuple[int], np.dtype[np.float64]]"
    ) -> tuple[Histogram, ...]:
        count = max(1, min(MOST_WINDOWS, round(self.measure_s)))
        places = np.frombuffer(self._done, np.float64) * count / self.measure_s
        # What came after the end (open loop: it was sent before) belongs to no window.
        return tuple(Histogram.of(response[places.astype(int) == n]) for n in range(count))
