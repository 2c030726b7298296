"""Everything that watches the serving path, put together."""

from dataclasses import dataclass, field

from app.observe import PrometheusObserver
from app.request_log import LogOptions, RequestLog
from app.tracing.options import TracingOptions
from app.tracing.tracing import traced
from app.triton_names import MetricsOptions, TritonNames
from scheduler.observer import Observer


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What the log, the metrics and tracing were told."""

    log: LogOptions = field(default_factory=LogOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    tracing: TracingOptions = field(default_factory=TracingOptions)


class Watching:
    """What counts, and what traces behind it if asked to. Raises TracingError."""

    def __init__(self, options: WatchOptions) -> None:
        spans, self.end = traced(Observer(), options.tracing)
        self.prometheus = PrometheusObserver(
            RequestLog(options.log), spans if options.tracing.endpoint else None
        )
        if options.metrics.triton_names:
            names = TritonNames(self.prometheus, self.prometheus.waiting)
            self.prometheus.also(names.families)
