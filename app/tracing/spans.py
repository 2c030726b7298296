"""Requests and batches as OpenTelemetry's spans: request -> queue -> batch -> gather, compute.

A batch is of several requests and of none: its span is a child of its first traced request's and
linked to all of them, and each request's queue span is linked to the batch that ended it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)

from app.sampling import in_sample
from app.tracing.attributes import Attributes, is_error, of_batch, of_request, span_name
from app.tracing.far import FarTrace
from scheduler.following import Following
from scheduler.observer import Answered, Computed, Observer
from scheduler.types import Trace
from transports.trace import Parent, parent_of

_ROOT = Context()


@dataclass(slots=True, eq=False)
class RequestSpan:
    """A request that is traced; ``offset_s`` is the wall clock's lead over the clock of all times.

    Taken once a request, so that no step of the wall clock tears its spans apart.
    """

    trace_id: str
    span_id: str
    span: Span
    began_s: float
    offset_s: float

    def ns(self, at_s: float) -> int:
        """Return ``at_s`` of the scheduler's clock in nanoseconds since 1970."""
        return round((at_s + self.offset_s) * 1e9)


class Spans(Following):
    """Record spans with ``provider``, and pass everything on to ``following``.

    A request whose sender records its trace is traced, one whose sender does not is not; of those
    without a sender a share of ``ratio`` is. ``time.perf_counter`` and the scheduler's
    ``time.monotonic`` are the same clock on Linux.
    """

    def __init__(self, following: Observer, provider: TracerProvider, ratio: float) -> None:
        super().__init__(following)
        self._tracer = provider.get_tracer("narsil")
        self._ratio = ratio

    def traced(self, traceparent: str, tracestate: str, began_s: float) -> Trace | None:
        """Begin the span of a request, if it is to be traced."""
        parent = parent_of(traceparent) if traceparent else None
        # Before any object of OpenTelemetry's is made: most requests may not be traced.
        if not (in_sample(self._ratio) if parent is None else parent.sampled):
            return None
        offset_s = time.time() - time.perf_counter()
        span = self._tracer.start_span(
            "request",
            _ROOT if parent is None else _context(parent, tracestate),
            SpanKind.SERVER,
            start_time=round((began_s + offset_s) * 1e9),
        )
        own = span.get_span_context()
        ids = format_trace_id(own.trace_id), format_span_id(own.span_id)
        return RequestSpan(*ids, span, began_s, offset_s)

    def answered(self, record: Answered) -> None:
        """End the span of a request."""
        trace = record.trace
        if isinstance(trace, RequestSpan):
            trace.span.update_name(span_name(record))
            trace.span.set_attributes(of_request(record))
            if is_error(record):
                trace.span.set_status(StatusCode.ERROR, record.detail)
            trace.span.end(trace.ns(trace.began_s + record.duration_s))
        self._following.answered(record)

    def computed(self, record: Computed) -> None:
        """Record the spans of a batch, if any of its requests is traced."""
        members = [
            (_here(trace), queue_s)
            for trace, queue_s in zip(record.traces, record.queue_s, strict=False)
            if isinstance(trace, RequestSpan | FarTrace)
        ]
        if members:
            batch = self._batch(record, [trace for trace, _ in members])
            for trace, queue_s in members:
                waited = record.started_s - queue_s, record.started_s
                link = Link(batch.get_span_context())
                self._span("queue", trace, trace.span, waited, [link])
        self._following.computed(record)

    def _batch(self, record: Computed, members: list[RequestSpan]) -> Span:
        first, started_s = members[0], record.started_s
        gathered_s = started_s if record.ahead else started_s + record.gather_s
        gathering = gathered_s - record.gather_s, gathered_s
        computing = gathered_s, gathered_s + record.compute_s
        links = [Link(each.span.get_span_context()) for each in members]
        whole = gathering[0], computing[1]
        batch = self._span("batch", first, first.span, whole, links, of_batch(record))
        self._span("gather", first, batch, gathering)
        self._span("compute", first, batch, computing)
        return batch

    def _span(
        self,
        name: str,
        clock: RequestSpan,
        parent: Span,
        during_s: tuple[float, float],
        links: Sequence[Link] = (),
        attributes: Attributes | None = None,
    ) -> Span:
        start_ns, end_ns = map(clock.ns, during_s)
        span = self._tracer.start_span(
            name,
            set_span_in_context(parent, _ROOT),
            attributes=attributes,
            links=links,
            start_time=start_ns,
        )
        span.end(end_ns)
        return span


def _here(trace: RequestSpan | FarTrace) -> RequestSpan:
    """Return what stands for a span that a front end has begun and will end."""
    if isinstance(trace, RequestSpan):
        return trace
    ids = int(trace.trace_id, 16), int(trace.span_id, 16)
    context = SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    now_s = time.monotonic()
    span = NonRecordingSpan(context)
    return RequestSpan(trace.trace_id, trace.span_id, span, now_s, time.time() - now_s)


def _context(parent: Parent, tracestate: str) -> Context:
    sender = SpanContext(
        int(parent.trace_id, 16),
        int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
        trace_state=TraceState.from_header([tracestate]) if tracestate else TraceState(),
    )
    return set_span_in_context(NonRecordingSpan(sender), _ROOT)
