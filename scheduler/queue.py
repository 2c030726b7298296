"""The waiting requests of one model: bounded, ordered, cut into batches; sans-IO.

Every method is given ``now`` (seconds on any one clock) and returns what happened; nothing here
waits, reads a clock or answers anybody. Each costs O(log n) for each request that it touches.

Order: one number a request, fixed when it arrives, the lowest first::

    min(deadline, arrival + ageing) + priority * 2 * ageing

Within a class that is the earliest deadline first, of those less than ``ageing_s`` away, and first
come first served among the rest. A higher class goes first among requests that arrived within
``ageing_s`` of each other. And nobody starves: what arrives later than its number is behind it.
"""

import heapq
import math
from collections import OrderedDict

import numpy as np

from scheduler.errors import Code, ServingError
from scheduler.waiting import (
    CROWDED,
    NOTHING,
    BatchSeconds,
    Limits,
    Load,
    Piece,
    Taken,
    Waiting,
    no_forecast,
    overloaded,
)


class _Place:
    """Where a request stands: what is left of it, and whether it has left the queue."""

    __slots__ = ("ids", "rows", "size_bytes", "start", "waiting")

    def __init__(self, waiting: Waiting) -> None:
        # None once it has left: its heap entry stays until it comes up, the request does not.
        self.waiting: Waiting | None = waiting
        self.start = 0
        self.rows = waiting.request.rows
        self.ids = waiting.ids
        self.size_bytes = waiting.request.size_bytes


class _Sum:
    """What waits of one kind."""

    __slots__ = ("ids", "requests", "rows")

    def __init__(self) -> None:
        self.requests = self.rows = self.ids = 0


_Heap = list[tuple[float, int, _Place]]


class RequestQueue:
    """Hold admitted requests until a lane is free."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._places: OrderedDict[Waiting, _Place] = OrderedDict()  # in order of arrival
        self._heaps: dict[tuple[str, ...], _Heap] = {}  # by group
        self._turns = 0  # breaks ties: first come, first served
        self._bytes = 0
        self._rows = 0
        # By priority, by whether there is a deadline, by group.
        self._sums: dict[tuple[int, bool, tuple[str, ...]], _Sum] = {}

    def __len__(self) -> int:
        return len(self._places)

    @property
    def rows(self) -> int:
        """Rows waiting."""
        return self._rows

    @property
    def full(self) -> bool:
        """Whether more arrivals could not make the next batch any larger."""
        heads = [heap[0] for heap in self._heaps.values() if self._skip_gone(heap)]
        if not heads:
            return False
        first = min(heads)[2].waiting
        assert first is not None
        limits = self._limits
        group = [total for key, total in self._sums.items() if key[2] == first.group]
        return (
            0 < limits.max_batch_requests <= sum([total.requests for total in group])
            or sum([total.rows for total in group]) >= limits.max_batch_rows
            or sum([total.ids for total in group]) >= limits.max_batch_ids
        )

    def up_to(self, priority: int, newcomer: Load = NOTHING) -> Load:
        """Return ``newcomer``, of class ``priority`` and with a deadline, and what goes first.

        Roughly: that is all of the higher classes, and what has a deadline too in its own.
        """
        requests, rows, ids = newcomer.requests, newcomer.rows, newcomer.ids
        for (class_, endless, _), total in self._sums.items():
            if class_ < priority or (class_ == priority and not endless):
                requests += total.requests
                rows += total.rows
                ids += total.ids
        return Load(requests, rows, ids)

    def push(self, waiting: Waiting) -> None:
        """Admit ``waiting`` or refuse it at once.

        Raises ServingError with OVERLOADED, or PAYLOAD_TOO_LARGE for what can never fit.
        """
        limits = self._limits
        place = _Place(waiting)
        rows, size_bytes = place.rows, place.size_bytes
        if size_bytes > limits.max_queue_bytes:
            raise ServingError(
                Code.PAYLOAD_TOO_LARGE,
                f"request: {size_bytes} bytes exceed the limit of {limits.max_queue_bytes} bytes"
                " (max_queue_bytes)",
            )
        if self._rows + rows > limits.max_queue_rows:
            raise overloaded("rows", self._rows, rows, limits.max_queue_rows)
        if self._bytes + size_bytes > limits.max_queue_bytes:
            raise overloaded("bytes", self._bytes, size_bytes, limits.max_queue_bytes)
        self._places[waiting] = place
        self._bytes += size_bytes
        self._count(waiting, 1, rows, waiting.ids)
        self._line_up(place, waiting, waiting.arrived_s)

    def remove(self, waiting: Waiting) -> bool:
        """Forget what is left of ``waiting``; return whether all of it was still here."""
        place = self._places.get(waiting)
        if place is None:
            return False
        self._leave(place, waiting)
        entries = sum(map(len, self._heaps.values()))
        if entries > 2 * len(self._places) + 64:  # so that entries never outgrow what waits
            self._sweep()
        return place.start == 0

    def take(
        self,
        now: float,
        *,
        at_once: bool = False,
        lanes: int = 1,
        batch_s: BatchSeconds = no_forecast,
        enough_s: float = math.inf,
    ) -> Taken:
        """Remove and return the next batch, and those met on the way that come too late.

        ``at_once`` overrides ``max_delay_s``. Several free ``lanes`` share what waits. ``batch_s``
        forecasts a batch: it grows no further than the deadlines in it allow, nor, where nothing
        crowds, once it takes ``enough_s``.
        """
        wake_s = None if at_once else self._held_until_s(now)
        if wake_s is not None:
            return Taken(wake_s=wake_s)
        expired: list[Piece] = []
        heads = [
            (heap[0], heap)
            for heap in tuple(self._heaps.values())
            if self._head(heap, now, batch_s, expired)
        ]
        share_rows = self._share_rows(lanes, batch_s, enough_s)
        batch = self._fill(min(heads)[1], now, share_rows, batch_s, expired) if heads else []
        return Taken(tuple(batch), tuple(expired))

    def _share_rows(self, lanes: int, batch_s: BatchSeconds, enough_s: float) -> int:
        """Return after how many rows a batch is large enough."""
        ids = sum([total.ids for total in self._sums.values()])
        shares = batch_s(self._rows, ids) / enough_s
        return math.ceil(self._rows / max(float(lanes), shares if shares < CROWDED else 0.0))

    def drain(self) -> tuple[Piece, ...]:
        """Remove everything, in order of arrival; return what was left of each request."""
        return tuple(self._rest(place, waiting) for waiting, place in tuple(self._places.items()))

    def _fill(
        self,
        heap: _Heap,
        now: float,
        share_rows: int,
        batch_s: BatchSeconds,
        expired: list[Piece],
    ) -> list[Piece]:
        batch: list[Piece] = []
        rows = ids = 0
        due_s = math.inf
        most = self._limits.max_batch_requests or math.inf
        while len(batch) < most and rows < share_rows:
            place = self._head(heap, now, batch_s, expired)
            piece = self._cut(place, rows, ids) if place else None
            if place is None or piece is None:
                break
            rows, ids = rows + piece.rows, ids + piece.ids
            due_s = min(due_s, piece.waiting.deadline_s)
            if batch and now + batch_s(rows, ids) > due_s:
                break
            heapq.heappop(heap)
            batch.append(piece)
            self._serve(place, piece, now)
        return batch

    def _head(
        self, heap: _Heap, now: float, batch_s: BatchSeconds, expired: list[Piece]
    ) -> _Place | None:
        """Return the first of ``heap`` that can still be answered in time."""
        while self._skip_gone(heap):
            place = heap[0][2]
            waiting = place.waiting
            assert waiting is not None
            due_s = waiting.deadline_s
            if due_s == math.inf or now + batch_s(place.rows, place.ids) < due_s:
                return place
            expired.append(self._rest(place, waiting))
        return None

    def _skip_gone(self, heap: _Heap) -> bool:
        """Drop the entries of those who have left from the head; return whether any is left."""
        while heap and heap[0][2].waiting is None:
            heapq.heappop(heap)
        return bool(heap)

    def _cut(self, place: _Place, rows: int, ids: int) -> Piece | None:
        """Return what fits a batch that has ``rows`` and ``ids`` already; None if nothing does."""
        waiting, start = place.waiting, place.start
        assert waiting is not None
        room_rows, room_ids = self._limits.max_batch_rows - rows, self._limits.max_batch_ids - ids
        if place.rows <= room_rows and place.ids <= room_ids:
            return Piece(waiting, start, start + place.rows, place.ids)
        before = waiting.ids_before
        if before is None:
            return None
        end_ids = before[start] + min(room_ids, place.ids)  # the limit may be beyond int64
        last = int(np.searchsorted(before, end_ids, side="right")) - 1
        stop = min(start + room_rows, last)
        if stop <= start:
            return None
        return Piece(waiting, start, stop, int(before[stop] - before[start]))

    def _serve(self, place: _Place, piece: Piece, now: float) -> None:
        waiting = piece.waiting
        if piece.rows == place.rows:
            self._leave(place, waiting)
            return
        place.start, place.rows, place.ids = (
            piece.stop, place.rows - piece.rows, place.ids - piece.ids,
        )  # fmt: skip
        self._count(waiting, 0, -piece.rows, -piece.ids)
        # The rest queues up as if it arrived now, so that a large request starves no small one.
        self._line_up(place, waiting, now)

    def _line_up(self, place: _Place, waiting: Waiting, arrived_s: float) -> None:
        ageing_s, timeout_s = self._limits.ageing_s, waiting.deadline_s - waiting.arrived_s
        number = arrived_s + min(timeout_s, ageing_s) + waiting.request.priority * 2 * ageing_s
        self._turns += 1
        heapq.heappush(self._heaps.setdefault(waiting.group, []), (number, self._turns, place))

    def _rest(self, place: _Place, waiting: Waiting) -> Piece:
        """Remove what is left of ``waiting``; return it."""
        self._leave(place, waiting)
        return Piece(waiting, place.start, place.start + place.rows, place.ids)

    def _leave(self, place: _Place, waiting: Waiting) -> None:
        place.waiting = None
        del self._places[waiting]
        self._bytes -= place.size_bytes
        self._count(waiting, -1, -place.rows, -place.ids)

    def _count(self, waiting: Waiting, requests: int, rows: int, ids: int) -> None:
        key = (waiting.request.priority, waiting.deadline_s == math.inf, waiting.group)
        total = self._sums.get(key)
        if total is None:
            total = self._sums[key] = _Sum()
        total.requests += requests
        total.rows += rows
        total.ids += ids
        self._rows += rows

    def _sweep(self) -> None:
        for heap in self._heaps.values():
            heap[:] = [entry for entry in heap if entry[2].waiting is not None]
            heapq.heapify(heap)

    def _held_until_s(self, now: float) -> float | None:
        if self._limits.max_delay_s == 0 or self.full or not self._places:
            return None
        firsts = [heap[0][2].waiting for heap in self._heaps.values() if self._skip_gone(heap)]
        due_s = min(self._due_s(first) for first in (next(iter(self._places)), *firsts) if first)
        return due_s if now < due_s else None

    def _due_s(self, waiting: Waiting) -> float:
        timeout_s = waiting.deadline_s - waiting.arrived_s
        return waiting.arrived_s + min(self._limits.max_delay_s, timeout_s / 2)
