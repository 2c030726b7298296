"""What a call's metadata may say, on every inference service."""

import random

from scheduler.errors import invalid, shown
from scheduler.observer import Observer
from scheduler.types import Trace
from transports.grpc.methods import Metadata
from transports.trace import TRACEPARENT, TRACESTATE, trace_id

# The call's own id, echoed in the trailers.
REQUEST_ID = "x-request-id"
# The class to be served in, 0 the first.
PRIORITY = "priority"
# A version or label of the model, where the message cannot say.
VERSION = "narsil-version"
# What decides which of several versions answers, where each has a share of the requests.
KEY = "x-request-key"
_MAX_ID_CHARS = 128


def text_in(metadata: Metadata, name: str, default: str = "") -> str:
    """Return the text called ``name``, or ``default``."""
    value = metadata.get(name, default)
    return value if isinstance(value, str) else default


def own_id(metadata: Metadata) -> str:
    """Return the id that the client gave the call, else that of its trace, else a new one."""
    if REQUEST_ID in metadata or TRACEPARENT in metadata:
        given = text_in(metadata, REQUEST_ID)[:_MAX_ID_CHARS] or own_trace(metadata)
        if given:
            return given
    # Names a request in logs and need not be a secret: a tenth of what the kernel's bytes cost.
    return random.getrandbits(128).to_bytes(16, "big").hex()


def own_trace(metadata: Metadata) -> str:
    """Return the id of the trace that the call is a part of, "" for none."""
    return trace_id(text_in(metadata, TRACEPARENT)) if TRACEPARENT in metadata else ""


def span_of(observer: Observer, metadata: Metadata, began_s: float) -> Trace | None:
    """Return the span of a call with ``metadata`` that began so, None if it is not traced."""
    trace = text_in(metadata, TRACEPARENT), text_in(metadata, TRACESTATE)
    return observer.traced(*trace, began_s)


def usable_id(text: str) -> str:
    """Return ``text``, an id from within a message, as far as metadata and logs can carry it."""
    return text[:_MAX_ID_CHARS] if text.isascii() and text.isprintable() else ""


def priority_in(metadata: Metadata) -> int:
    """Return the priority class asked for, 0 if none is. Raises ServingError."""
    if PRIORITY not in metadata:
        return 0
    text = text_in(metadata, PRIORITY, "0")
    if not (text.isdecimal() and len(text) < 10):
        raise invalid(f"metadata priority: expected an integer of 0 or more, got {shown(text)}")
    return int(text)
