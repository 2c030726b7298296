"""Count what Triton's statistics extension reports, over all transports together.

Durations are nanoseconds. A request is charged with all of the time that its batch took.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.engine import Engine
from scheduler.following import Following
from scheduler.observer import Answered, Computed, Observer
from scheduler.types import ModelSpec


@dataclass(slots=True)
class Spent:
    """How often something happened and how long it took altogether."""

    count: int = 0
    ns: int = 0

    def add(self, count: int, seconds: float) -> None:
        """Count ``count`` more, of so many seconds all together."""
        self.count += count
        self.ns += round(seconds * 1e9)


@dataclass(slots=True)
class BatchFigures:
    """What batches of one size took."""

    gather: Spent = field(default_factory=Spent)
    compute: Spent = field(default_factory=Spent)


@dataclass(slots=True)
class ModelFigures:
    """What one version of a model has done.

    ``success`` and ``fail`` count its requests and time them from receipt to answer.

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


class Statistics(Following):
    """Count for each version of each model, and pass everything on to ``following``."""

    def __init__(self, following: Observer, now_s: Callable[[], float] = time.time) -> None:
        super().__init__(following)
        self._now_s = now_s
        self._models: dict[tuple[str, str], ModelFigures] = {}

    def of(self, model: str, version: str) -> ModelFigures:
        """Return the figures of a version that is served; they go on changing."""
        return self._figures(model, version)

    def _figures(self, model: str, version: str) -> ModelFigures:
        figures = self._models.get((model, version))
        if figures is None:
            figures = self._models[model, version] = ModelFigures()
        return figures

    def all(self) -> Mapping[tuple[str, str], ModelFigures]:
        """Return the figures of every version by model and version."""
        return self._models

    def serving(self, specs: Iterable[ModelSpec]) -> None:
        """Forget the figures of every version but those that are served."""
        served = {(spec.name, spec.version) for spec in specs}
        self._models = {key: figures for key, figures in self._models.items() if key in served}

    def answered(self, record: Answered) -> None:
        """Count a request by its outcome."""
        if record.version:  # else it named nothing that is served
            figures = self._figures(record.model, record.version)
            spent = figures.success if record.code is None else figures.fail
            spent.add(1, record.duration_s)
        self._following.answered(record)

    def computed(self, record: Computed) -> None:
        """Count a batch, and each request in it."""
        figures, requests = self._figures(record.model, record.version), len(record.queue_s)
        figures.queue.add(requests, sum(record.queue_s))
        figures.gather.add(requests, requests * record.gather_s)
        figures.compute.add(requests, requests * record.compute_s)
        figures.rows += record.rows
        figures.batches += 1
        figures.last_ms = round(self._now_s() * 1e3)
        batches = figures.by_rows[record.rows]
        batches.gather.add(1, record.gather_s)
        batches.compute.add(1, record.compute_s)
        self._following.computed(record)


def statistics_of(engine: Engine) -> Statistics | None:
    """Return the statistics that ``engine`` reports to, or None if nobody counts."""
    return engine.observer if isinstance(engine.observer, Statistics) else None


def specs_asked(engine: Engine, model: str, version: str) -> tuple[ModelSpec, ...]:
    """Return whose figures are asked for: "" stands for every model, or every version of one.

    Raises ServingError.
    """
    if not model:
        return engine.specs()
    spec = engine.spec(model, version)
    return (spec,) if version else tuple(one for one in engine.specs() if one.name == spec.name)
