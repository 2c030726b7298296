"""W3C Trace Context: the trace that a request is a part of."""

import re

TRACEPARENT = "traceparent"

_FIELDS = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


def trace_id(traceparent: str) -> str:
    """Return the id of the trace, "" for a ``traceparent`` that is none (section 3.2).

    A version after ours, 00, may add fields; it has these first.
    """
    fields = _FIELDS.fullmatch(traceparent)
    if fields is None:
        return ""
    version, trace, parent, more = fields.groups()
    broken = version == "ff" or (version == "00" and more is not None)
    return "" if broken or not trace.strip("0") or not parent.strip("0") else str(trace)
