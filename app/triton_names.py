"""The figures under the names that Triton gives them, for dashboards made for it.

Nothing is counted for them: they are read at a scrape from what is counted anyway.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from app.series import Family, Foreign, Gauges, Labels
from transports.statistics import ModelFigures, Statistics

_LABELS = ("model", "version")


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Choose what the metrics page has."""

    triton_names: bool = field(
        default=False, metadata={"help": "also the names that Triton's dashboards ask for"}
    )


# By name: what it is, and how it comes of the figures.
_COUNTERS: dict[str, tuple[str, Callable[[ModelFigures], float]]] = {
    "request_success": ("Requests that succeeded", lambda one: one.success.count),
    "request_failure": ("Requests that failed", lambda one: one.fail.count),
    "count": ("Rows computed", lambda one: one.rows),
    "exec_count": ("Batches computed", lambda one: one.batches),
    "request_duration_us": (
        "Receipt to answer", lambda one: (one.success.ns + one.fail.ns) // 1000
    ),
    "queue_duration_us": ("Wait for a lane", lambda one: one.queue.ns // 1000),
    "compute_input_duration_us": ("Gathering, by request", lambda one: one.gather.ns // 1000),
    "compute_infer_duration_us": ("Computing, by request", lambda one: one.compute.ns // 1000),
    "compute_output_duration_us": ("Nothing: part of computing", lambda one: 0),
}  # fmt: skip


class TritonNames:
    """Families for a scrape; ``waiting`` gives requests in the queue by model and version."""

    def __init__(
        self, statistics: Statistics, waiting: Callable[[], Mapping[tuple[str, str], int]]
    ) -> None:
        self._statistics = statistics
        self._waiting = waiting

    def families(self) -> Iterator[Family]:
        """Yield every family."""
        figures = self._statistics.all()
        for name, (text, value) in _COUNTERS.items():
            by: dict[Labels, float] = {key: value(one) for key, one in figures.items()}
            yield Foreign(f"nv_inference_{name}", text, _LABELS, by)
        pending = Gauges("nv_inference_pending_request_count", "Requests waiting", _LABELS)
        pending.by = dict(self._waiting().items())
        yield pending
