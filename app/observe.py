"""What the server counts and times for its operators: Prometheus' metrics."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, get_args

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from app.charge import charge
from app.families import SECONDS, Families
from app.gpu import GpuSeries
from app.lately import Lately
from app.path_series import PathSeries
from app.pending import MOST, Pending, batches_of
from app.request_log import RequestLog
from app.series import Family
from app.version_series import ShadowSeries, UpdateSeries
from app.waiting_series import WaitingSeries
from scheduler.control import Refused
from scheduler.errors import Code, Missed
from scheduler.observer import (
    Answered,
    Computed,
    DropReason,
    Observer,
    ReloadOutcome,
    Shadowed,
    Updated,
)
from scheduler.types import ModelSpec, Trace
from transports.statistics import ModelFigures, Statistics

LAG_PERIOD_S = 0.1


class PrometheusObserver(Statistics):
    """Count and time everything the serving path reports; ``log`` has a word on requests.

    What was asked and computed well is kept and counted later, many at once, before anybody looks.
    ``following``, if given, hears of requests and batches, too, at once.
    """

    def __init__(self, log: RequestLog | None = None, following: Observer | None = None) -> None:
        super().__init__(following or Observer())
        self.log = log or RequestLog()
        self._follows = following is not None
        self._pending = Pending()
        self._served: set[str] = set()
        self._families = families = Families()
        self._also: list[Callable[[], Iterable[Family]]] = []
        self._before: list[Callable[[], Awaitable[None]]] = []
        self._registry = CollectorRegistry()  # what is read at a scrape, by others
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        version = ("model", "version")
        self._path = PathSeries(families)
        self._keyed = families.counters(
            "key_requests", "Requests by API key, and what became of it", ("key", "outcome")
        )
        self._waiting = WaitingSeries(families)
        self._dropped = families.counters(
            "dropped", "Requests never computed, by reason", ("model", "reason")
        )
        self._missed = families.counters(
            "oov_ids",
            "Ids without a row, or hashed, by what became of them",
            ("model", "table", "policy"),
        )
        self._reloads = families.counters(
            "model_reloads", "Loads of a model in its own place", ("model", "outcome")
        )
        self._updates = UpdateSeries(families)
        self._info = families.gauges("model_info", "Models served", ("model", "version"))
        self._plan = families.gauges(
            "model_plan", "How each model computes", ("model", "version", "plan")
        )
        self._gpus = GpuSeries()
        self._registry.register(self._gpus)
        self._shadow = ShadowSeries(families)
        self._labels = families.gauges("model_label", "Where labels point", (*version, "label"))
        self._reachable = families.gauges("repository_reachable", "Whether it can be read", ())
        self._refused = families.gauges(
            "repository_refused", "Versions not served, or not in their present form", version
        )
        self._lag = families.histograms(
            "event_loop_lag_seconds", "Lateness of a timer", (), SECONDS
        )
        self._lately = Lately(self._path.totals(self._waiting.rows, self.settle), SECONDS)

    def loaded(self, spec: ModelSpec, lanes: int) -> None:
        """Begin every series of a model that no event has begun: a dashboard shows 0, not a gap."""
        for reason in get_args(DropReason):
            self._dropped.by[spec.name, reason] += 0
        for outcome in get_args(ReloadOutcome):
            self._reloads.by[spec.name, outcome] += 0
        for table, policy in spec.id_policies.items():
            self._missed.by[spec.name, table, policy] += 0
        self._updates.loaded(spec)
        self._waiting.loaded(spec.name, spec.version)
        self._path.loaded(spec.name, lanes)

    def reloaded(self, model: str, outcome: ReloadOutcome) -> None:
        """Count a reload."""
        self._reloads.by[model, outcome] += 1

    def updated(self, record: Updated) -> None:
        """Count and time a delta."""
        self._updates.updated(record)

    def also(
        self,
        families: Callable[[], Iterable[Family]],
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Expose what ``families`` gives at each scrape, too; wait for ``before`` first."""
        self._also.append(families)
        if before is not None:
            self._before.append(before)

    def waiting(self) -> dict[tuple[str, str], int]:
        """Return how many requests wait, by model and version."""
        return self._waiting.requests()

    def traced(self, traceparent: str, tracestate: str, began_s: float) -> Trace | None:
        """Return what who follows says."""
        if not self._follows:
            return None
        return self._following.traced(traceparent, tracestate, began_s)

    def answered(self, record: Answered) -> None:
        """Count the answer, at once if it is an error."""
        if record.code is None:
            kept = self._pending.answered
            kept.append(record)
            if len(kept) >= MOST:
                self.settle()
        else:
            self._failed(record, record.code)
        if record.code is not None or self.log.all_requests:
            self.log.answered(record)
        if self._follows:
            self._following.answered(record)

    def _failed(self, record: Answered, code: Code) -> None:
        model = self._known(record.model)
        self._path.failed(model, record.transport, code.value, record.duration_s)
        if record.version:
            self._figures(record.model, record.version).fail.add(1, record.duration_s)
        self._lately.failed(record, time.time())

    def _known(self, model: str) -> str:
        # A name that is not served would let any client make a new time series.
        return model if model in self._served else "unknown"

    def keyed(self, key: str, outcome: str) -> None:
        """Count a request by the name of its API key, "" for none that is known."""
        self._keyed.by[key, outcome] += 1

    def queued(self, spec: ModelSpec, rows: int, requests: int, batches: int) -> None:
        """Show what waits and what runs."""
        waiting = self._waiting
        if waiting.spec is not spec:
            waiting.turn(spec)
        waiting.load = rows, requests, batches

    def dropped(self, model: str, reason: DropReason) -> None:
        """Count a request that never ran."""
        self._dropped.by[model, reason] += 1

    def missed(self, model: str, missed: tuple[Missed, ...]) -> None:
        """Count ids by table and policy."""
        for table, policy, ids in missed:
            self._missed.by[model, table, policy] += ids

    def computed(self, record: Computed) -> None:
        """Time a batch and the waits before it."""
        kept = self._pending.computed
        kept.append(record)
        if len(kept) >= MOST:
            self.settle()
        if self._follows:
            self._following.computed(record)

    def settle(self) -> None:
        """Count everything that is not counted yet."""
        for (model, version, transport), durations_s in self._pending.take_answered().items():
            self._path.answered(self._known(model), transport, durations_s)
            if version:  # else it named nothing that is served
                figures = self._figures(model, version)
                figures.success.add(len(durations_s), sum(durations_s))
        for (model, version, lane), records in self._pending.take_computed().items():
            batches = batches_of(records)
            self._path.computed(model, lane, batches)
            figures = self._figures(model, version)
            charge(figures, batches)
            figures.last_ms = round(_ended_s(records[-1]) * 1e3)

    def of(self, model: str, version: str) -> ModelFigures:
        """Return the figures of a version that is served, as they are now."""
        self.settle()
        return super().of(model, version)

    def all(self) -> Mapping[tuple[str, str], ModelFigures]:
        """Return the figures of every version, as they are now."""
        self.settle()
        return super().all()

    def shadowed(self, record: Shadowed) -> None:
        """Count a copy, and how far its scores are from those answered with."""
        self._shadow.shadowed(record)

    def repository(self, reachable: bool, refused: Sequence[Refused]) -> None:
        """Show whether the repository can be read, and what of it is refused."""
        self._reachable.by[()] = reachable
        self._refused.by = {(one.model, one.version): 1 for one in refused}

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics as text or OpenMetrics, whichever the scraper accepts."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # it names a version that is no number
            encode, content_type = choose_encoder("")
        openmetrics = content_type.startswith("application/openmetrics-text")
        self.settle()
        self._waiting.settle()
        also = chain.from_iterable(families() for families in self._also)
        lines = [line for family in (*self._families, *also) for line in family.lines(openmetrics)]
        own = "\n".join([*lines, ""]).encode("utf-8", "replace")
        return own + encode(self._registry), content_type

    async def scraped(self, accept: str) -> tuple[bytes, str]:
        """Return ``exposition``, once those who report late have done so."""
        for each in self._before:
            await each()
        return self.exposition(accept)

    def serving(self, specs: Iterable[ModelSpec]) -> None:
        """Show which models are served, and no others any more."""
        self.settle()
        specs = tuple(specs)
        super().serving(specs)
        # Names stay known: what a model that is gone had admitted is still being answered.
        self._served.update(spec.name for spec in specs)
        versions = {(spec.name, spec.version) for spec in specs}
        self._waiting.serving(versions)
        self._info.by = {(spec.name, spec.version): 1 for spec in specs}
        plans = [(spec.name, spec.version, spec.properties.get("plan", "")) for spec in specs]
        self._labels.by = {
            (spec.name, spec.version, label): 1
            for spec in specs
            for label in filter(None, spec.properties.get("labels", "").split(","))
        }
        self._plan.by = {labels: 1 for labels in plans if labels[-1]}
        self._gpus.watch(uuid for spec in specs if (uuid := spec.properties.get("gpu_uuid")))
        self._updates.serving(versions)

    def recent(self, model: str, since: int) -> Mapping[str, Any]:
        """Return the last five minutes, and the last errors."""
        return self._lately.shown(model, since)

    async def watch_loop(self) -> None:
        """Measure how late the event loop is, keep the last minutes' figures; for ever."""
        while True:
            self.log.tell_suppressed()
            # Not the loop's own clock: uvloop's ticks in milliseconds.
            due_s = time.perf_counter() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            now_s = time.perf_counter()
            self._lag.by[()].observe(max(0.0, now_s - due_s))
            self._lately.look(now_s)


def _ended_s(record: Computed) -> float:
    """Return when a batch was over, in seconds after 1970; its own times are the scheduler's."""
    over_s = record.started_s + record.gather_s + record.compute_s
    return time.time() - max(0.0, time.monotonic() - over_s)
