"""The one callback interface through which the serving path is watched.

Override what is needed; each method is called on the event loop and must return in microseconds.
"""

from dataclasses import dataclass
from typing import Literal

from scheduler.errors import Code
from scheduler.types import Batch, Timing

DropReason = Literal["deadline", "cancelled", "queue_full", "draining"]


@dataclass(frozen=True, slots=True)
class Answered:
    """One request as its transport saw it; ``code`` is None for success."""

    transport: str
    model: str
    rows: int
    code: Code | None
    duration_s: float
    request_id: str = ""
    detail: str = ""


class Observer:
    """Watch nothing; subclasses watch something."""

    def answered(self, record: Answered) -> None:
        """A transport has an answer for a request, good or bad."""

    def queued(self, model: str, rows: int) -> None:
        """The queue of ``model`` now holds ``rows`` rows."""

    def dropped(self, model: str, reason: DropReason) -> None:
        """A request left without being computed."""

    def computed(self, model: str, batch: Batch, timings: tuple[Timing, ...]) -> None:
        """A lane finished ``batch``; ``timings`` has one entry per request."""

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return what was watched, for a scraper: body and content type for an Accept header."""
        del accept
        return b"", "text/plain; charset=utf-8"
