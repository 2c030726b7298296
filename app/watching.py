"""Everything that watches the serving path, put together."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.observe import PrometheusObserver
from app.request_log import LogOptions, RequestLog
from app.tracing.options import TracingOptions
from app.tracing.tracing import traced
from app.triton_names import MetricsOptions, TritonNames
from scheduler.types import ModelSpec
from transports.statistics import Statistics


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What the log, the metrics and tracing were told."""

    log: LogOptions = field(default_factory=LogOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    tracing: TracingOptions = field(default_factory=TracingOptions)


class Watching:
    """A chain of observers: ``statistics`` hears everything first, ``prometheus`` last.

    Raises TracingError.
    """

    def __init__(self, options: WatchOptions) -> None:
        self.prometheus = PrometheusObserver(RequestLog(options.log))
        following, self.end = traced(self.prometheus, options.tracing)
        self.statistics = Statistics(following)
        if options.metrics.triton_names:
            names = TritonNames(self.statistics, self.prometheus.waiting)
            self.prometheus.also(names.families)

    def serving(self, specs: Sequence[ModelSpec]) -> None:
        """Take note of which models are served."""
        self.prometheus.serving(tuple(specs))
        self.statistics.serving(specs)
