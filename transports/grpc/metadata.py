"""What a call's metadata may say, on every inference service."""

import re
import uuid
from collections.abc import Mapping

from scheduler.errors import invalid, shown

# The call's own id, echoed in the trailers.
REQUEST_ID = "x-request-id"
# The class to be served in, 0 the first.
PRIORITY = "priority"
# W3C trace context: the trace that the call is a part of.
TRACEPARENT = "traceparent"

_MAX_ID_CHARS = 128
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def own_id(metadata: Mapping[str, str]) -> str:
    """Return the id that the client gave the call, else that of its trace, else a new one."""
    given = metadata.get(REQUEST_ID, "")[:_MAX_ID_CHARS]
    trace = _TRACE.match(metadata.get(TRACEPARENT, ""))
    return given or (trace.group(1) if trace else uuid.uuid4().hex)


def usable_id(text: str) -> str:
    """Return ``text``, an id from within a message, as far as metadata and logs can carry it."""
    return text[:_MAX_ID_CHARS] if text.isascii() and text.isprintable() else ""


def priority_in(metadata: Mapping[str, str]) -> int:
    """Return the priority class asked for, 0 if none is. Raises ServingError."""
    text = metadata.get(PRIORITY, "0")
    if not (text.isdecimal() and len(text) < 10):
        raise invalid(f"metadata priority: expected an integer of 0 or more, got {shown(text)}")
    return int(text)
