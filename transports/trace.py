"""W3C Trace Context: the trace that a request is a part of."""

import re
from typing import NamedTuple

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

_FIELDS = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Parent(NamedTuple):
    """The span that a request was sent from: ids in hexadecimal, and whether it is recorded."""

    trace_id: str
    span_id: str
    sampled: bool


def parent_of(traceparent: str) -> Parent | None:
    """Return the sender's span, None for a ``traceparent`` that is none (section 3.2).

    A version after ours, 00, may add fields; it has these first.
    """
    fields = _FIELDS.fullmatch(traceparent)
    if fields is None:
        return None
    version, trace, span, flags, more = fields.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not trace.strip("0") or not span.strip("0"):
        return None
    return Parent(trace, span, sampled=bool(int(flags, 16) & 1))


def trace_id(traceparent: str) -> str:
    """Return the id of the trace, "" for a ``traceparent`` that is none."""
    parent = parent_of(traceparent)
    return parent.trace_id if parent else ""
