"""What every request adds to: its answer, its batch, its wait."""

from collections.abc import Callable, Mapping, Sequence

from app.families import Families
from app.pending import Batches
from app.totals import Totals

POWERS_OF_TWO = tuple(2.0**power for power in range(15))
POWERS_OF_FOUR = tuple(4.0**power for power in range(11))


class PathSeries:
    """Series that are added to many at once."""

    def __init__(self, families: Families) -> None:
        model, transport = ("model",), ("model", "transport")
        self.requests = families.counters(
            "requests", "Requests answered, by outcome (ok or the error code)", (*transport, "code")
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

    def loaded(self, model: str, lanes: int) -> None:
        """Begin the series of each lane."""
        for lane in range(lanes):
            self._busy.by[model, str(lane)] += 0

    def failed(self, model: str, transport: str, code: str, duration_s: float) -> None:
        """Count an answer that was an error."""
        self.requests.by[model, transport, code] += 1
        self._duration.by[model, transport].observe(duration_s)

    def answered(self, model: str, transport: str, durations_s: Sequence[float]) -> None:
        """Count so many good answers."""
        self.requests.by[model, transport, "ok"] += len(durations_s)
        self._duration.by[model, transport].observe_all(durations_s)

    def computed(self, model: str, lane: int, batches: Batches) -> None:
        """Count so many batches."""
        self._gather.by[model,].observe_all(batches.gather_s)
        self._compute.by[model,].observe_all(batches.compute_s)
        self._rows.by[model,].observe_all(batches.rows)
        self._ids.by[model,].observe_all(batches.ids)
        self._size.by[model,].observe_all(batches.requests)
        self._queue.by[model,].observe_all(batches.queue_s)
        busy_s = batches.gather_s.sum() + batches.compute_s.sum()
        self._busy.by[model, str(lane)] += float(busy_s)

    def totals(
        self, waiting_rows: Callable[[], Mapping[str, int]], settle: Callable[[], None]
    ) -> Totals:
        """Return how to read what all this adds up to; ``settle`` brings it up to date."""
        return Totals(self.requests, self._duration, self._rows, self._size, waiting_rows, settle)
