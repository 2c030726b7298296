"""What the server tells its operators: Prometheus metrics and one log line per failed request."""

import asyncio
import logging
import time

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder

from scheduler.errors import Code
from scheduler.observer import Answered, DropReason, Observer
from scheduler.types import Batch, ModelSpec, Timing

logger = logging.getLogger(__name__)

# Sub-millisecond steps: a recommender answers in about one millisecond, and the common defaults
# begin at five.
SECONDS = (
    0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075,
    0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip
POWERS_OF_TWO = tuple(2.0**power for power in range(15))
LAG_PERIOD_S = 0.1
MAX_DETAIL_CHARACTERS = 500


class PrometheusObserver(Observer):
    """Count and time everything the serving path reports, in a registry of its own."""

    def __init__(self) -> None:
        self._served: set[str] = set()
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

        def histogram(
            name: str, text: str, labels: list[str], buckets: tuple[float, ...]
        ) -> Histogram:
            return Histogram(f"narsil_{name}", text, labels, buckets=buckets, registry=registry)

        self._requests = Counter(
            "narsil_requests", "Requests answered, by outcome (ok or the error code)",
            ["model", "transport", "code"], registry=registry,
        )  # fmt: skip
        self._duration = histogram(
            "request_duration_seconds", "Receipt to answer", ["model", "transport"], SECONDS
        )
        self._queue = histogram("queue_duration_seconds", "Wait for a lane", ["model"], SECONDS)
        self._compute = histogram("compute_duration_seconds", "One batch", ["model"], SECONDS)
        self._batch_rows = histogram("batch_rows", "Rows in a batch", ["model"], POWERS_OF_TWO)
        self._batch_requests = histogram(
            "batch_requests", "Requests in a batch", ["model"], POWERS_OF_TWO
        )
        self._waiting = Gauge(
            "narsil_queue_depth_rows", "Rows waiting", ["model"], registry=registry
        )
        self._dropped = Counter(
            "narsil_dropped", "Requests never computed", ["model", "reason"], registry=registry
        )
        self._info = Gauge(
            "narsil_model_info", "Models served", ["model", "version"], registry=registry
        )
        self._lag = histogram("event_loop_lag_seconds", "Lateness of a timer", [], SECONDS)

    def answered(self, record: Answered) -> None:
        """Count the answer; log it if it is an error."""
        code = "ok" if record.code is None else record.code.value
        # A name that is not served would let any client make a new time series.
        model = record.model if record.model in self._served else "unknown"
        self._requests.labels(model, record.transport, code).inc()
        self._duration.labels(model, record.transport).observe(record.duration_s)
        if record.code is not None:
            level = logging.ERROR if record.code is Code.INTERNAL else logging.INFO
            logger.log(
                level, "%s request %s: %s: %s",
                record.transport, record.request_id or "-", code, _one_line(record.detail),
            )  # fmt: skip

    def queued(self, model: str, rows: int) -> None:
        """Show how many rows wait."""
        self._waiting.labels(model).set(rows)

    def dropped(self, model: str, reason: DropReason) -> None:
        """Count a request that never ran."""
        self._dropped.labels(model, reason).inc()

    def computed(self, model: str, batch: Batch, timings: tuple[Timing, ...]) -> None:
        """Time a batch and the waits before it."""
        self._compute.labels(model).observe(timings[0].compute_s)
        self._batch_rows.labels(model).observe(timings[0].batch_rows)
        self._batch_requests.labels(model).observe(len(batch.requests))
        queue = self._queue.labels(model)
        for timing in timings:
            queue.observe(timing.queue_s)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics as text or OpenMetrics, whichever the scraper accepts."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # it names a version that is no number
            encode, content_type = choose_encoder("")
        return encode(self._registry), content_type

    def serving(self, specs: tuple[ModelSpec, ...]) -> None:
        """Show which models are served."""
        for spec in specs:
            self._served.add(spec.name)
            self._info.labels(spec.name, spec.version).set(1)

    async def watch_loop(self) -> None:
        """Measure how late the event loop is, for ever."""
        while True:
            # Not the loop's own clock: uvloop's ticks in milliseconds.
            due_s = time.perf_counter() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self._lag.observe(max(0.0, time.perf_counter() - due_s))


def _one_line(detail: str) -> str:
    """Escape what a client may have put into ``detail`` to forge a line of the log."""
    return detail[:MAX_DETAIL_CHARACTERS].encode("unicode_escape").decode("ascii")
