"""A request's span in another process."""

from dataclasses import dataclass


@dataclass(slots=True)
class FarTrace:
    """A span that a front end has begun and ends."""

    trace_id: str
    span_id: str
