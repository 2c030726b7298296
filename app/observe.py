"""What the server tells its operators: Prometheus metrics and one log line per failed request."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TypeVar, get_args

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from app.gpu import GpuSeries
from app.series import Counters, Gauges, Histograms, Labels
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
    UpdateOutcome,
)
from scheduler.types import ModelSpec

logger = logging.getLogger(__name__)

Series = TypeVar("Series", bound=Collector)

# Sub-millisecond steps: a recommender answers in about one millisecond, and the common defaults
# begin at five.
SECONDS = (
    0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075,
    0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip
POWERS_OF_TWO = tuple(2.0**power for power in range(15))
POWERS_OF_FOUR = tuple(4.0**power for power in range(11))
DIFFERENCES = tuple(10.0**power for power in range(-8, 3))
LAG_PERIOD_S = 0.1
MAX_DETAIL_CHARACTERS = 500


class PrometheusObserver(Observer):
    """Count and time everything the serving path reports, in a registry of its own."""

    def __init__(self) -> None:
        self._served: set[str] = set()
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        model, transport = ("model",), ("model", "transport")
        self._requests = self._counters(
            "requests", "Requests answered, by outcome (ok or the error code)", (*transport, "code")
        )
        self._keyed = self._counters(
            "key_requests", "Requests by API key, and what became of it", ("key", "outcome")
        )
        self._duration = self._histograms(
            "request_duration_seconds", "Receipt to answer", transport, SECONDS
        )
        self._queue = self._histograms("queue_duration_seconds", "Wait for a lane", model, SECONDS)
        self._gather = self._histograms(
            "gather_duration_seconds", "Gathering one batch", model, SECONDS
        )
        self._compute = self._histograms(
            "compute_duration_seconds", "Computing one batch", model, SECONDS
        )
        self._rows = self._histograms("batch_rows", "Rows in a batch", model, POWERS_OF_TWO)
        self._ids = self._histograms("batch_ids", "Ids in a batch", model, POWERS_OF_FOUR)
        self._size = self._histograms("batch_requests", "Requests in a batch", model, POWERS_OF_TWO)
        self._busy = self._counters(
            "lane_busy_seconds", "Seconds that a lane has spent on batches", ("model", "lane")
        )
        self._waiting = self._gauges("queue_depth_rows", "Rows waiting", model)
        self._dropped = self._counters(
            "dropped", "Requests never computed, by reason", ("model", "reason")
        )
        self._missed = self._counters(
            "oov_ids",
            "Ids without a row, or hashed, by what became of them",
            ("model", "table", "policy"),
        )
        self._reloads = self._counters(
            "model_reloads", "Loads of a model in its own place", ("model", "outcome")
        )
        self._update_rows = self._counters("update_rows", "Embedding rows replaced", model)
        self._update_deltas = self._counters(
            "update_deltas", "Deltas of embedding rows, and rollbacks", ("model", "outcome")
        )
        self._update_duration = self._histograms(
            "update_duration_seconds", "Applying one delta", model, SECONDS
        )
        self._update_sequence = self._gauges(
            "update_sequence", "Deltas in force since the load", ("model", "version")
        )
        self._info = self._gauges("model_info", "Models served", ("model", "version"))
        self._plan = self._gauges(
            "model_plan", "How each model computes", ("model", "version", "plan")
        )
        self._gpus = self._registered(GpuSeries())
        shadow = ("model", "version")
        self._copies = self._counters(
            "shadow_requests", "Copies for a shadow version, by outcome", (*shadow, "outcome")
        )
        self._largest = self._histograms(
            "shadow_max_difference", "Largest difference of a copy's scores", shadow, DIFFERENCES
        )
        self._mean = self._histograms(
            "shadow_mean_difference", "Mean difference of a copy's scores", shadow, DIFFERENCES
        )
        self._labels = self._gauges("model_label", "Where labels point", (*shadow, "label"))
        self._reachable = self._gauges("repository_reachable", "Whether it can be read", ())
        self._refused = self._gauges(
            "repository_refused", "Versions not served, or not in their present form", shadow
        )
        self._lag = self._histograms("event_loop_lag_seconds", "Lateness of a timer", (), SECONDS)

    def loaded(self, spec: ModelSpec, lanes: int) -> None:
        """Begin every series of a model that no event has begun: a dashboard shows 0, not a gap."""
        for reason in get_args(DropReason):
            self._dropped.by[spec.name, reason] += 0
        for outcome in get_args(ReloadOutcome):
            self._reloads.by[spec.name, outcome] += 0
        for table, policy in spec.id_policies.items():
            self._missed.by[spec.name, table, policy] += 0
        for done in get_args(UpdateOutcome):
            self._update_deltas.by[spec.name, done] += 0
        self._update_sequence.by[spec.name, spec.version] = 0
        for lane in range(lanes):
            self._busy.by[spec.name, str(lane)] += 0

    def reloaded(self, model: str, outcome: ReloadOutcome) -> None:
        """Count a reload."""
        self._reloads.by[model, outcome] += 1

    def updated(self, record: Updated) -> None:
        """Count and time a delta."""
        self._update_deltas.by[record.model, record.outcome] += 1
        self._update_sequence.by[record.model, record.version] = record.sequence
        if record.outcome in ("applied", "rolled_back"):
            self._update_rows.by[record.model,] += record.rows
            self._update_duration.by[record.model,].observe(record.seconds)

    def answered(self, record: Answered) -> None:
        """Count the answer; log it if it is an error."""
        code = "ok" if record.code is None else record.code.value
        # A name that is not served would let any client make a new time series.
        model = record.model if record.model in self._served else "unknown"
        self._requests.by[model, record.transport, code] += 1
        self._duration.by[model, record.transport].observe(record.duration_s)
        if record.code is not None:
            level = logging.ERROR if record.code is Code.INTERNAL else logging.INFO
            logger.log(
                level, "%s request %s%s: %s: %s",
                record.transport, record.request_id or "-",
                f" of trace {record.trace_id}" if record.trace_id else "",
                code, _one_line(record.detail),
            )  # fmt: skip

    def keyed(self, key: str, outcome: str) -> None:
        """Count a request by the name of its API key, "" for none that is known."""
        self._keyed.by[key, outcome] += 1

    def queued(self, model: str, rows: int) -> None:
        """Show how many rows wait."""
        self._waiting.by[model,] = rows

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
        version = (record.model, record.version)
        self._copies.by[*version, record.outcome] += 1
        if record.outcome == "compared":
            self._largest.by[version].observe(record.max_difference)
            self._mean.by[version].observe(record.mean_difference)

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
        return encode(self._registry), content_type

    def serving(self, specs: tuple[ModelSpec, ...]) -> None:
        """Show which models are served, and no others any more."""
        # Names stay known: what a model that is gone had admitted is still being answered.
        self._served.update(spec.name for spec in specs)
        self._info.by = {(spec.name, spec.version): 1 for spec in specs}
        plans = [(spec.name, spec.version, spec.properties.get("plan", "")) for spec in specs]
        self._labels.by = {
            (spec.name, spec.version, label): 1
            for spec in specs
            for label in filter(None, spec.properties.get("labels", "").split(","))
        }
        self._plan.by = {labels: 1 for labels in plans if labels[-1]}
        self._gpus.watch(uuid for spec in specs if (uuid := spec.properties.get("gpu_uuid")))
        sequences, served = self._update_sequence.by, {labels[:2] for labels in plans}
        self._update_sequence.by = {one: sequences[one] for one in sequences if one in served}

    async def watch_loop(self) -> None:
        """Measure how late the event loop is, for ever."""
        while True:
            # Not the loop's own clock: uvloop's ticks in milliseconds.
            due_s = time.perf_counter() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self._lag.by[()].observe(max(0.0, time.perf_counter() - due_s))

    def _histograms(
        self, name: str, text: str, labels: Labels, bounds: Sequence[float]
    ) -> Histograms:
        return self._registered(Histograms(f"narsil_{name}", text, labels, bounds))

    def _counters(self, name: str, text: str, labels: Labels) -> Counters:
        return self._registered(Counters(f"narsil_{name}", text, labels))

    def _gauges(self, name: str, text: str, labels: Labels) -> Gauges:
        return self._registered(Gauges(f"narsil_{name}", text, labels))

    def _registered(self, series: Series) -> Series:
        self._registry.register(series)
        return series


def _one_line(detail: str) -> str:
    """Escape what a client may have put into ``detail`` to forge a line of the log."""
    return detail[:MAX_DETAIL_CHARACTERS].encode("unicode_escape").decode("ascii")
