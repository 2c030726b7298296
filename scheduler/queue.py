"""The waiting requests of one model: bounded, first come first served, sans-IO.

Every method takes the time it needs as ``now`` (seconds on any one clock) and returns what
happened; nothing here waits, reads a clock or answers anybody.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """One admitted request; equal only to itself. Times are on the queue's clock (seconds).

    ``stamp_s`` is its arrival on a finer clock, for Timing: uvloop's ticks in milliseconds.
    """

    request: InferRequest
    arrived_s: float
    deadline_s: float = math.inf
    stamp_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bound the queue and its batches.

    ``max_delay_s`` holds a batch that is not full until its oldest request has waited that long.
    """

    max_queue_rows: int
    max_queue_bytes: int
    max_batch_rows: int
    max_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Taken:
    """What one look at the queue yields.

    ``batch`` is to be run now, ``expired`` to be told so; ``wake_s`` is when to look again if
    only ``max_delay_s`` held a batch back, else None.
    """

    batch: tuple[Waiting, ...] = ()
    expired: tuple[Waiting, ...] = ()
    wake_s: float | None = None


class RequestQueue:
    """Hold admitted requests until a lane is free."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # An OrderedDict, not a deque: a cancelled request leaves from the middle in O(1).
        self._waiting: OrderedDict[Waiting, None] = OrderedDict()
        self._rows = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def rows(self) -> int:
        """Rows waiting."""
        return self._rows

    def push(self, waiting: Waiting) -> None:
        """Admit ``waiting`` or refuse it at once.

        Raises ServingError with OVERLOADED, or PAYLOAD_TOO_LARGE for what can never fit.
        """
        limits = self._limits
        rows, size_bytes = waiting.request.rows, waiting.request.size_bytes
        if size_bytes > limits.max_queue_bytes:
            raise ServingError(
                Code.PAYLOAD_TOO_LARGE,
                f"request: {size_bytes} bytes exceed the limit of {limits.max_queue_bytes} bytes"
                " (max_queue_bytes)",
            )
        if self._rows + rows > limits.max_queue_rows:
            raise _overloaded("rows", self._rows, rows, limits.max_queue_rows)
        if self._bytes + size_bytes > limits.max_queue_bytes:
            raise _overloaded("bytes", self._bytes, size_bytes, limits.max_queue_bytes)
        self._waiting[waiting] = None
        self._rows += rows
        self._bytes += size_bytes

    def remove(self, waiting: Waiting) -> bool:
        """Forget ``waiting``; return whether it was still here."""
        if waiting not in self._waiting:
            return False
        del self._waiting[waiting]
        self._rows -= waiting.request.rows
        self._bytes -= waiting.request.size_bytes
        return True

    def take(self, now: float, *, at_once: bool = False) -> Taken:
        """Remove and return the next batch, oldest first, and the expired met on the way.

        ``at_once`` overrides ``max_delay_s``.
        """
        wake_s = None if at_once else self._held_until_s(now)
        if wake_s is not None:
            return Taken(wake_s=wake_s)
        batch: list[Waiting] = []
        expired: list[Waiting] = []
        room_rows = self._limits.max_batch_rows
        while self._waiting:
            waiting = next(iter(self._waiting))
            if waiting.deadline_s <= now:
                expired.append(waiting)
            elif waiting.request.rows <= room_rows:
                batch.append(waiting)
                room_rows -= waiting.request.rows
            else:
                break
            self.remove(waiting)
        return Taken(tuple(batch), tuple(expired))

    def drain(self) -> tuple[Waiting, ...]:
        """Remove and return everything."""
        everything = tuple(self._waiting)
        self._waiting.clear()
        self._rows = self._bytes = 0
        return everything

    def _held_until_s(self, now: float) -> float | None:
        full = self._rows >= self._limits.max_batch_rows
        if self._limits.max_delay_s == 0 or full or not self._waiting:
            return None
        due_s = next(iter(self._waiting)).arrived_s + self._limits.max_delay_s
        return due_s if now < due_s else None


def _overloaded(unit: str, held: int, asked: int, limit: int) -> ServingError:
    return ServingError(
        Code.OVERLOADED,
        f"queue full: {held} {unit} wait and {asked} more exceed the limit of {limit} {unit}"
        f" (max_queue_{unit})",
    )
