"""The one callback interface through which the serving path is watched.

Override what is needed; each method is called on the event loop and must return in microseconds.
"""

from typing import Literal

from scheduler.errors import Code
from scheduler.often import often_made

DropReason = Literal["deadline", "cancelled", "queue_full", "predicted_late", "draining"]


@often_made(frozen=True, slots=True)
class Answered:
    """One request as its transport saw it; ``code`` is None for success."""

    transport: str
    model: str
    rows: int
    code: Code | None
    duration_s: float
    request_id: str = ""
    detail: str = ""


@often_made(frozen=True, slots=True)
class Computed:
    """One batch that a lane has finished; ``queue_s`` has the wait of each request in it.

    ``gather_s`` and ``compute_s`` are the lane's, ``lane`` its number.
    """

    model: str
    rows: int
    ids: int
    lane: int
    gather_s: float
    compute_s: float
    queue_s: tuple[float, ...]


class Observer:
    """Watch nothing; subclasses watch something."""

    def answered(self, record: Answered) -> None:
        """A transport has an answer for a request, good or bad."""

    def queued(self, model: str, rows: int) -> None:
        """The queue of ``model`` now holds ``rows`` rows."""

    def dropped(self, model: str, reason: DropReason) -> None:
        """A request left without being computed."""

    def computed(self, record: Computed) -> None:
        """A lane finished a batch."""

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return what was watched, for a scraper: body and content type for an Accept header."""
        del accept
        return b"", "text/plain; charset=utf-8"
