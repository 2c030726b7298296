"""What the server counts and times for its operators: Prometheus' metrics."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, get_args

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from app.families import SECONDS, Families
from app.gpu import GpuSeries
from app.lately import Lately
from app.request_log import RequestLog
from app.series import Family
from app.totals import Totals
from app.version_series import ShadowSeries, UpdateSeries
from scheduler.control import Refused
from scheduler.errors import Missed
from scheduler.observer import (
    Answered,
    Computed,
    DropReason,
    Observer,
    ReloadOutcome,
    Shadowed,
    Updated,
)
from scheduler.types import ModelSpec

POWERS_OF_TWO = tuple(2.0**power for power in range(15))
POWERS_OF_FOUR = tuple(4.0**power for power in range(11))
LAG_PERIOD_S = 0.1


class PrometheusObserver(Observer):
    """Count and time everything the serving path reports; ``log`` has a word on requests."""

    def __init__(self, log: RequestLog | None = None) -> None:
        self.log = log or RequestLog()
        self._served: set[str] = set()
        # By model and version: rows and requests that wait, batches with the lanes.
        self._load: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._families = families = Families()
        self._also: list[Callable[[], Iterable[Family]]] = []
        self._registry = CollectorRegistry()  # what is read at a scrape, by others
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        model, transport, version = ("model",), ("model", "transport"), ("model", "version")
        self._requests = families.counters(
            "requests", "Requests answered, by outcome (ok or the error code)", (*transport, "code")
        )
        self._keyed = families.counters(
            "key_requests", "Requests by API key, and what became of it", ("key", "outcome")
        )
        self._duration = families.histograms(
            "request_duration_seconds", "Receipt to answer", transport
        )
        self._queue = families.histograms("queue_duration_seconds", "Wait for a lane", model)
        self._gather = families.histograms("gather_duration_seconds", "Gathering one batch", model)
        self._compute = families.histograms(
            "compute_duration_seconds", "Computing one batch", model
        )
        self._rows = families.histograms("batch_rows", "Rows in a batch", model, POWERS_OF_TWO)
        self._ids = families.histograms("batch_ids", "Ids in a batch", model, POWERS_OF_FOUR)
        self._size = families.histograms(
            "batch_requests", "Requests in a batch", model, POWERS_OF_TWO
        )
        self._busy = families.counters(
            "lane_busy_seconds", "Seconds that a lane has spent on batches", ("model", "lane")
        )
        self._waiting = (
            families.gauges("queue_depth_rows", "Rows waiting", model),
            families.gauges("queue_depth_requests", "Requests waiting", model),
            families.gauges("inflight_batches", "Batches with the lanes", model),
        )
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
        totals = Totals(self._requests, self._duration, self._rows, self._size, self._waiting_rows)
        self._lately = Lately(totals, SECONDS)

    def loaded(self, spec: ModelSpec, lanes: int) -> None:
        """Begin every series of a model that no event has begun: a dashboard shows 0, not a gap."""
        for reason in get_args(DropReason):
            self._dropped.by[spec.name, reason] += 0
        for outcome in get_args(ReloadOutcome):
            self._reloads.by[spec.name, outcome] += 0
        for table, policy in spec.id_policies.items():
            self._missed.by[spec.name, table, policy] += 0
        self._updates.loaded(spec)
        self._load.setdefault((spec.name, spec.version), (0, 0, 0))
        for lane in range(lanes):
            self._busy.by[spec.name, str(lane)] += 0

    def reloaded(self, model: str, outcome: ReloadOutcome) -> None:
        """Count a reload."""
        self._reloads.by[model, outcome] += 1

    def updated(self, record: Updated) -> None:
        """Count and time a delta."""
        self._updates.updated(record)

    def also(self, families: Callable[[], Iterable[Family]]) -> None:
        """Expose what ``families`` gives at each scrape, too."""
        self._also.append(families)

    def waiting(self) -> dict[tuple[str, str], int]:
        """Return how many requests wait, by model and version."""
        return {version: requests for version, (_, requests, _) in self._load.items()}

    def answered(self, record: Answered) -> None:
        """Count the answer."""
        code = "ok" if record.code is None else record.code.value
        # A name that is not served would let any client make a new time series.
        model = record.model if record.model in self._served else "unknown"
        self._requests.by[model, record.transport, code] += 1
        self._duration.by[model, record.transport].observe(record.duration_s)
        if record.code is not None:
            self._lately.failed(record, time.time())
        if record.code is not None or self.log.all_requests:
            self.log.answered(record)

    def keyed(self, key: str, outcome: str) -> None:
        """Count a request by the name of its API key, "" for none that is known."""
        self._keyed.by[key, outcome] += 1

    def queued(self, spec: ModelSpec, rows: int, requests: int, batches: int) -> None:
        """Show what waits and what runs."""
        self._load[spec.name, spec.version] = rows, requests, batches

    def dropped(self, model: str, reason: DropReason) -> None:
        """Count a request that never ran."""
        self._dropped.by[model, reason] += 1

    def missed(self, model: str, missed: tuple[Missed, ...]) -> None:
        """Count ids by table and policy."""
        for table, policy, ids in missed:
            self._missed.by[model, table, policy] += ids

    def computed(self, record: Computed) -> None:
        """Time a batch and the waits before it."""
        model = (record.model,)
        self._gather.by[model].observe(record.gather_s)
        self._compute.by[model].observe(record.compute_s)
        self._rows.by[model].observe(record.rows)
        self._ids.by[model].observe(record.ids)
        self._size.by[model].observe(len(record.queue_s))
        self._busy.by[record.model, str(record.lane)] += record.gather_s + record.compute_s
        queue = self._queue.by[model]
        for queue_s in record.queue_s:
            queue.observe(queue_s)

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
        self._sum_load()
        also = chain.from_iterable(families() for families in self._also)
        lines = [line for family in (*self._families, *also) for line in family.lines(openmetrics)]
        own = "\n".join([*lines, ""]).encode("utf-8", "replace")
        return own + encode(self._registry), content_type

    def _waiting_rows(self) -> dict[str, int]:
        """Return the rows that wait, of each model of which any do."""
        waiting = Counter[str]()
        for (model, _), (rows, _, _) in self._load.items():
            waiting[model] += rows
        return {model: rows for model, rows in waiting.items() if rows}

    def _sum_load(self) -> None:
        """Add up the versions of each model."""
        sums: dict[str, tuple[int, ...]] = {}
        for (model, _), load in self._load.items():
            others = sums.get(model, (0,) * len(load))
            sums[model] = tuple(map(sum, zip(load, others, strict=True)))
        for number, gauges in enumerate(self._waiting):
            gauges.by = {(model,): load[number] for model, load in sums.items()}

    def serving(self, specs: tuple[ModelSpec, ...]) -> None:
        """Show which models are served, and no others any more."""
        # Names stay known: what a model that is gone had admitted is still being answered.
        self._served.update(spec.name for spec in specs)
        versions = {(spec.name, spec.version) for spec in specs}
        self._load = {key: one for key, one in self._load.items() if key in versions or any(one)}
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
