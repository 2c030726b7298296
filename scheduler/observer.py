"""The one callback interface through which the serving path is watched.

Override what is needed; each method is called on the event loop and must return in microseconds.
"""

from collections.abc import Mapping
from typing import Any, Literal

from scheduler.errors import Missed
from scheduler.often import often_made
from scheduler.records import Answered, Computed
from scheduler.types import ModelSpec, Trace

__all__ = [
    "Answered",
    "Computed",
    "DropReason",
    "Observer",
    "ReloadOutcome",
    "ShadowOutcome",
    "Shadowed",
    "UpdateOutcome",
    "Updated",
]

DropReason = Literal["deadline", "cancelled", "queue_full", "predicted_late", "draining"]
ReloadOutcome = Literal["ok", "failed"]
# Of a copy for a shadow: compared; failed or too late there; dropped because too many were in
# flight (behind) or clients' requests took every lane (busy); answered with what is no number.
ShadowOutcome = Literal["compared", "failed", "late", "behind", "busy", "incomparable"]
UpdateOutcome = Literal["applied", "already_applied", "refused", "failed", "rolled_back"]


@often_made(frozen=True, slots=True)
class Shadowed:
    """One request that was copied to the shadow ``version`` of a model, or would have been.

    The differences, largest and mean, are those of its scores from the ones answered with.
    """

    model: str
    version: str
    outcome: ShadowOutcome
    max_difference: float = 0.0
    mean_difference: float = 0.0


@often_made(frozen=True, slots=True)
class Updated:
    """One delta of embedding rows, or a rollback, and where it left the model.

    ``rows`` were replaced, 0 if it was not applied; ``sequence`` deltas are in force.
    """

    model: str
    version: str
    outcome: UpdateOutcome
    rows: int
    seconds: float
    sequence: int


class Observer:
    """Watch nothing; subclasses watch something."""

    def loaded(self, spec: ModelSpec, lanes: int) -> None:
        """A model, or a version of one, is about to be served on so many lanes."""

    def reloaded(self, model: str, outcome: ReloadOutcome) -> None:
        """A model was loaded anew in the place of itself, or could not be."""

    def traced(self, traceparent: str, tracestate: str, began_s: float) -> Trace | None:
        """Return the span of a request that began so (``time.perf_counter``), None for no span.

        The first two are what the client says of its trace (W3C), "" for nothing.
        """
        del traceparent, tracestate, began_s
        return None

    def answered(self, record: Answered) -> None:
        """A transport has an answer for a request, good or bad."""

    def keyed(self, key: str, outcome: str) -> None:
        """A request came with the API key of that name, "" for none that is known."""

    def queued(self, spec: ModelSpec, rows: int, requests: int, batches: int) -> None:
        """Of a version of a model so much waits now, and so many batches are with its lanes."""

    def dropped(self, model: str, reason: DropReason) -> None:
        """A request left without being computed."""

    def missed(self, model: str, missed: tuple[Missed, ...]) -> None:
        """A request had ids that its tables have no rows for, or that are hashed."""

    def computed(self, record: Computed) -> None:
        """A lane finished a batch; of one that ran on the event loop, after its answer has left."""

    def shadowed(self, record: Shadowed) -> None:
        """A shadow was asked, or left out."""

    def updated(self, record: Updated) -> None:
        """A delta of embedding rows was applied or not, or all were rolled back."""

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return what was watched, for a scraper: body and content type for an Accept header."""
        del accept
        return b"", "text/plain; charset=utf-8"

    async def scraped(self, accept: str) -> tuple[bytes, str]:
        """Return ``exposition``, from wherever it is made. Raises ServingError."""
        return self.exposition(accept)

    def recent(self, model: str, since: int) -> Mapping[str, Any]:
        """Return what the last minutes brought, for a page, as JSON can say it.

        Of ``model`` or, if that is "", of all; from second number ``since`` on.
        """
        del model, since
        return {}
