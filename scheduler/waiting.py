"""What waits for a lane, and what one look at the queue yields: the queue's nouns."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest

# Seconds that a batch of so many rows and ids takes to compute.
BatchSeconds: TypeAlias = Callable[[int, int], float]


class Waiting:
    """One admitted request; equal only to itself. Times are on the queue's clock (seconds).

    Nobody changes it but for the last two, which are the scheduler's own.

    ``ids_before`` (rows + 1,) counts the ids before each row: given if the request is larger than
    a batch, which is then split. ``group`` is what requests must have in common to share a batch.
    ``expected_s`` is how long the answer was forecast to take, 0 if nobody knew. ``handed_out``
    counts the pieces that are with the lanes, ``begun`` says that one has run.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # its attributes
        self,
        request: InferRequest,
        arrived_s: float,
        deadline_s: float = math.inf,
        ids: int = 0,
        ids_before: npt.NDArray[np.int64] | None = None,
        group: tuple[str, ...] = (),
        expected_s: float = 0.0,
    ) -> None:
        self.request: Final = request
        self.arrived_s: Final = arrived_s
        self.deadline_s: Final = deadline_s
        self.ids: Final = ids
        self.ids_before: Final = ids_before
        self.group: Final = group
        self.expected_s: Final = expected_s
        self.handed_out = 0
        self.begun = False


class Piece:
    """Rows ``start`` to ``stop`` of one request: all of it (``whole``), or what fits one batch."""

    def __init__(self, waiting: Waiting, start: int, stop: int, ids: int) -> None:
        self.waiting: Final = waiting
        self.start: Final = start
        self.stop: Final = stop
        self.ids: Final = ids
        self.rows: Final[int] = stop - start
        self.whole: Final[bool] = stop - start == waiting.request.rows


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


@dataclass(slots=True)
class Taken:
    """What one look at the queue yields.

    ``batch`` is to be run now, ``expired`` (what is left of each) to be told so: their deadline
    has passed, or will have before they are computed. ``wake_s`` is when to look again if only
    ``max_delay_s`` held a batch back, else None.
    """

    batch: Final[tuple[Piece, ...]]
    expired: Final[tuple[Piece, ...]]
    wake_s: Final[float | None]

    def __init__(
        self,
        batch: tuple[Piece, ...] = (),
        expired: tuple[Piece, ...] = (),
        wake_s: float | None = None,
    ) -> None:
        self.batch = batch
        self.expired = expired
        self.wake_s = wake_s


@dataclass(slots=True)
class Load:
    """An amount of waiting work."""

    requests: Final[int]
    rows: Final[int]
    ids: Final[int]

    def __init__(self, requests: int, rows: int, ids: int) -> None:
        self.requests = requests
        self.rows = rows
        self.ids = ids


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
