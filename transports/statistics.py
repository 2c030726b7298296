"""Count what Triton's statistics extension reports, over all transports together.

Durations are nanoseconds. A request is charged with all of the time that its batch took.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler.engine import Engine
from scheduler.observer import Answered, Computed, DropReason, Observer


@dataclass(slots=True)
class Spent:
    """How often something happened and how long it took altogether."""

    count: int = 0
    ns: int = 0

    def add(self, count: int, each_s: float) -> None:
        """Count ``count`` more, of so many seconds each."""
        self.count += count
        self.ns += round(count * each_s * 1e9)


@dataclass(slots=True)
class BatchFigures:
    """What batches of one size took."""

    gather: Spent = field(default_factory=Spent)
    compute: Spent = field(default_factory=Spent)


@dataclass(slots=True)
class ModelFigures:
    """What one model has done: ``success`` and ``fail`` from receipt to answer, by request.

    ``queue``, ``gather`` and ``compute`` count the requests of each batch; ``rows`` and
    ``batches`` were computed, the last of them ``last_ms`` after 1970. ``by_rows`` is by the rows
    of a batch.
    """

    success: Spent = field(default_factory=Spent)
    fail: Spent = field(default_factory=Spent)
    queue: Spent = field(default_factory=Spent)
    gather: Spent = field(default_factory=Spent)
    compute: Spent = field(default_factory=Spent)
    rows: int = 0
    batches: int = 0
    last_ms: int = 0
    by_rows: dict[int, BatchFigures] = field(default_factory=lambda: defaultdict(BatchFigures))


class Statistics(Observer):
    """Count for each model, and pass everything on to ``following``."""

    def __init__(self, following: Observer, now_s: Callable[[], float] = time.time) -> None:
        self._following = following
        self._now_s = now_s
        self._models: dict[str, ModelFigures] = {}

    def of(self, model: str) -> ModelFigures:
        """Return the figures of ``model``, a name that is served; they go on changing."""
        return self._models.setdefault(model, ModelFigures())

    def answered(self, record: Answered) -> None:
        """Count a request by its outcome."""
        if record.model:  # else it named no model that is served
            figures = self.of(record.model)
            spent = figures.success if record.code is None else figures.fail
            spent.add(1, record.duration_s)
        self._following.answered(record)

    def queued(self, model: str, rows: int) -> None:
        """Pass it on."""
        self._following.queued(model, rows)

    def dropped(self, model: str, reason: DropReason) -> None:
        """Pass it on."""
        self._following.dropped(model, reason)

    def computed(self, record: Computed) -> None:
        """Count a batch, and each request in it."""
        figures, requests = self.of(record.model), len(record.queue_s)
        figures.queue.add(requests, sum(record.queue_s) / max(requests, 1))
        figures.gather.add(requests, record.gather_s)
        figures.compute.add(requests, record.compute_s)
        figures.rows += record.rows
        figures.batches += 1
        figures.last_ms = round(self._now_s() * 1e3)
        batches = figures.by_rows[record.rows]
        batches.gather.add(1, record.gather_s)
        batches.compute.add(1, record.compute_s)
        self._following.computed(record)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return what ``following`` exposes."""
        return self._following.exposition(accept)


def statistics_of(engine: Engine) -> Statistics | None:
    """Return the statistics that ``engine`` reports to, or None if nobody counts."""
    return engine.observer if isinstance(engine.observer, Statistics) else None
