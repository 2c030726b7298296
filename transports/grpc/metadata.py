"""What a call's metadata may say, on every inference service."""

import uuid
from collections.abc import Mapping

from scheduler.errors import invalid, shown
from transports.trace import TRACEPARENT, trace_id

# The call's own id, echoed in the trailers.
REQUEST_ID = "x-request-id"
# The class to be served in, 0 the first.
PRIORITY = "priority"
_MAX_ID_CHARS = 128


def own_id(metadata: Mapping[str, str]) -> str:
    """Return the id that the client gave the call, else that of its trace, else a new one."""
    given = metadata.get(REQUEST_ID, "")[:_MAX_ID_CHARS]
    return given or own_trace(metadata) or uuid.uuid4().hex


def own_trace(metadata: Mapping[str, str]) -> str:
    """Return the id of the trace that the call is a part of, "" for none."""
    return trace_id(metadata.get(TRACEPARENT, ""))


def usable_id(text: str) -> str:
    """Return ``text``, an id from within a message, as far as metadata and logs can carry it."""
    return text[:_MAX_ID_CHARS] if text.isascii() and text.isprintable() else ""


def priority_in(metadata: Mapping[str, str]) -> int:
    """Return the priority class asked for, 0 if none is. Raises ServingError."""
    text = metadata.get(PRIORITY, "0")
    if not (text.isdecimal() and len(text) < 10):
        raise invalid(f"metadata priority: expected an integer of 0 or more, got {shown(text)}")
    return int(text)
