"""The last five minutes, second by second, and the last errors: what a page shows.

Nothing here is on the path of a request but ``failed``, for errors. Told the time; no clock.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.second import Second, percentiles
from app.totals import Totals
from scheduler.observer import Answered

KEPT_SECONDS = 300
KEPT_ERRORS = 50
MAX_DETAIL_CHARACTERS = 500
# What the figures of "now" are taken over: one second of little traffic says nothing.
NOW_SECONDS = 10
NOTHING = Second()
SHARES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}


@dataclass(frozen=True, slots=True)
class Lapse:
    """One second as it was measured, by model; ``waiting_rows`` are the most that were seen."""

    seconds: float
    done: dict[str, Second]
    together: Second
    waiting_rows: dict[str, int]

    def of(self, model: str) -> Second:
        """Return what was done for ``model``, or ("") for all together."""
        return self.done.get(model, NOTHING) if model else self.together

    def waiting_of(self, model: str) -> int:
        """Return the rows that waited for ``model``, or for all."""
        return self.waiting_rows.get(model, 0) if model else sum(self.waiting_rows.values())


@dataclass(frozen=True, slots=True)
class Failed:
    """One error as its client was told it, ``at_s`` after 1970."""

    at_s: float
    code: str
    model: str
    version: str
    transport: str
    request_id: str
    trace_id: str
    detail: str


class Lately:
    """Keep what ``totals`` grow by in each second; ``bounds_s`` are those of its durations."""

    def __init__(self, totals: Totals, bounds_s: Sequence[float]) -> None:
        self._totals = totals
        self._bounds_ms = [bound * 1e3 for bound in bounds_s]
        self._lapses: deque[Lapse] = deque(maxlen=KEPT_SECONDS)
        self._number = 0  # of the second that is under way
        self._errors: deque[tuple[int, Failed]] = deque(maxlen=KEPT_ERRORS)
        self._before: dict[str, Second] = {}
        self._since_s: float | None = None
        self._waiting_rows: dict[str, int] = {}

    def failed(self, record: Answered, at_s: float) -> None:
        """Remember an error."""
        error = Failed(
            at_s,
            record.code.value if record.code else "",
            record.model,
            record.version,
            record.transport,
            record.request_id,
            record.trace_id,
            record.detail[:MAX_DETAIL_CHARACTERS],
        )
        self._errors.append((self._number, error))

    def look(self, now_s: float) -> None:
        """See what waits; once a second has passed, what was done in it. Call it often."""
        if self._since_s is None:
            self._since_s, self._before = now_s, self._totals.read()
        for model, rows in self._totals.waiting_rows().items():
            self._waiting_rows[model] = max(rows, self._waiting_rows.get(model, 0))
        if now_s - self._since_s >= 1.0:
            self._close(now_s - self._since_s)
            self._since_s = now_s

    def shown(self, model: str, since: int) -> dict[str, Any]:
        """Return the seconds from number ``since`` on, of ``model`` or ("") of all together.

        ``now`` has the figures of the last NOW_SECONDS.
        """
        first = self._number - len(self._lapses)
        start = min(max(since, first), self._number)
        lapses = list(self._lapses)
        figures = [self._figures([lapse], model) for lapse in lapses[start - first :]]
        now = self._figures(lapses[-NOW_SECONDS:], model)
        return {
            "first": start,
            "next": self._number,
            "kept": KEPT_SECONDS,
            "series": {name: [each[name] for each in figures] for name in now},
            "now": now,
            "errors": [asdict(error) for error in self._errors_of(model, start)],
        }

    def _close(self, seconds: float) -> None:
        totals = self._totals.read()
        done = {
            model: grown
            for model, total in totals.items()
            if total != (before := self._before.get(model, NOTHING)) and (grown := total - before)
        }
        together = _together(list(done.values()))
        self._lapses.append(Lapse(seconds, done, together, self._waiting_rows))
        self._before, self._waiting_rows = totals, {}
        self._number += 1

    def _errors_of(self, model: str, start: int) -> list[Failed]:
        return [
            error
            for number, error in self._errors
            if start <= number < self._number and model in ("", error.model)
        ]

    def _figures(self, lapses: Sequence[Lapse], model: str) -> dict[str, float | None]:
        """Return rates, percentiles (None: no request) and sizes (None: no batch)."""
        seconds = sum(lapse.seconds for lapse in lapses) or 1.0
        done = _together([lapse.of(model) for lapse in lapses])
        latencies = percentiles(done.durations, self._bounds_ms, tuple(SHARES.values()))
        return {
            "requests_per_s": _rounded(done.requests / seconds),
            "errors_per_s": _rounded(done.errors / seconds),
            "rows_per_s": _rounded(done.rows / seconds),
            **dict(zip(SHARES, map(_rounded, latencies), strict=True)),
            "batch_rows": _ratio(done.rows, done.batches),
            "batch_requests": _ratio(done.batch_requests, done.batches),
            "waiting_rows": max((lapse.waiting_of(model) for lapse in lapses), default=0),
        }


def _together(seconds: Sequence[Second]) -> Second:
    return sum(seconds[1:], seconds[0]) if seconds else NOTHING


def _ratio(amount: int, count: int) -> float | None:
    return _rounded(amount / count) if count else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
