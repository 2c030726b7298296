"""What waits for a lane, and what one look at the queue yields: the queue's nouns."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest

# Seconds that a batch of so many rows and ids takes to compute.
BatchSeconds: TypeAlias = Callable[[int, int], float]


@dataclass(slots=True, eq=False)
class Waiting:
    """One admitted request; equal only to itself. Times are on the queue's clock (seconds).

    Nobody changes it but for the last two, which are the scheduler's own; it is not frozen because
    that triples what making one costs. The nouns below are tuples for the same reason: they are
    made for every request.

    ``ids_before`` (rows + 1,) counts the ids before each row: given if the request is larger than
    a batch, which is then split. ``group`` is what requests must have in common to share a batch.
    ``expected_s`` is how long the answer was forecast to take, 0 if nobody knew. ``handed_out``
    counts the pieces that are with the lanes, ``begun`` says that one has run.
    """

    request: InferRequest
    arrived_s: float
    deadline_s: float = math.inf
    ids: int = 0
    ids_before: npt.NDArray[np.int64] | None = None
    group: tuple[str, ...] = ()
    expected_s: float = 0.0
    handed_out: int = 0
    begun: bool = False


class Piece(NamedTuple):
    """Rows ``start`` to ``stop`` of one request: all of it, or what fits one batch."""

    waiting: Waiting
    start: int
    stop: int
    ids: int

    @property
    def rows(self) -> int:
        """Rows of this piece."""
        return self.stop - self.start

    @property
    def whole(self) -> bool:
        """Whether this is the entire request."""
        return self.rows == self.waiting.request.rows


@dataclass(frozen=True, slots=True)
class Limits:
    """Bound the queue and its batches.

    ``max_batch_requests`` 0 is no limit. ``max_delay_s`` holds a batch that is not full until its
    oldest request has waited that long, or half its timeout.
    """

    max_queue_rows: int
    max_queue_bytes: int
    max_batch_rows: int
    max_batch_ids: int = 2**63 - 1
    max_batch_requests: int = 0
    max_delay_s: float = 0.0
    ageing_s: float = 0.5


class Taken(NamedTuple):
    """What one look at the queue yields.

    ``batch`` is to be run now, ``expired`` (what is left of each) to be told so: their deadline
    has passed, or will have before they are computed. ``wake_s`` is when to look again if only
    ``max_delay_s`` held a batch back, else None.
    """

    batch: tuple[Piece, ...] = ()
    expired: tuple[Piece, ...] = ()
    wake_s: float | None = None


class Load(NamedTuple):
    """An amount of waiting work."""

    requests: int
    rows: int
    ids: int


NOTHING = Load(0, 0, 0)
# Of more that waits than so many batches that are large enough, full ones are answered soonest.
CROWDED = 4


def no_forecast(rows: int, ids: int) -> float:
    """Forecast nothing: no batch takes any time."""
    del rows, ids
    return 0.0


def overloaded(unit: str, held: int, asked: int, limit: int) -> ServingError:
    """Return the refusal of what no longer fits the queue."""
    return ServingError(
        Code.OVERLOADED,
        f"queue full: {held} {unit} wait and {asked} more exceed the limit of {limit} {unit}"
        f" (max_queue_{unit})",
    )
