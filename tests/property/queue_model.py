"""What the queue must do, said in the plainest way: re-sort and recount everything each time."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.errors import Code
from scheduler.waiting import BatchSeconds, Limits, Load, Piece, Waiting

PRIORITIES = range(3)
GROUPS: list[tuple[str, ...]] = [(), ("weights",), ("dense", "weights")]


@dataclass(eq=False)
class Entry:
    """What is left of one request: ids by row, its first row, since when it is in line."""

    waiting: Waiting
    left: list[int]
    since_s: float
    turn: int
    start: int = 0


class Cut(NamedTuple):
    """Rows of one request; comparable, as a Piece is not."""

    waiting: Waiting
    start: int
    stop: int
    ids: int


class Look(NamedTuple):
    """What one look yields, in comparable terms; who expired has no order."""

    batch: list[Cut]
    expired: set[Cut]
    wake_s: float | None = None


def cuts(pieces: Iterable[Piece]) -> list[Cut]:
    return [Cut(piece.waiting, piece.start, piece.stop, piece.ids) for piece in pieces]


def total(entries: Iterable[Entry]) -> Load:
    lefts = [entry.left for entry in entries]
    return Load(len(lefts), sum(map(len, lefts)), sum(map(sum, lefts)))


class ModelQueue:
    """A list of what waits, in order of arrival."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.entries: list[Entry] = []  # in order of arrival
        self.turn = 0

    def load(self) -> Load:
        return total(self.entries)

    def up_to(self, priority: int) -> Load:
        def is_ahead(waiting: Waiting) -> bool:
            own = waiting.request.priority == priority and waiting.deadline_s < math.inf
            return own or waiting.request.priority < priority

        return total(one for one in self.entries if is_ahead(one.waiting))

    def full(self) -> bool:
        if not self.entries:
            return False
        group = min(self.entries, key=self.place).waiting.group
        load = total(one for one in self.entries if one.waiting.group == group)
        return (
            load.rows >= self.limits.max_batch_rows
            or load.ids >= self.limits.max_batch_ids
            or load.requests >= (self.limits.max_batch_requests or math.inf)
        )

    def refuses(self, waiting: Waiting) -> tuple[Code, str] | None:
        size_bytes = waiting.request.size_bytes
        held_bytes = sum(entry.waiting.request.size_bytes for entry in self.entries)
        if size_bytes > self.limits.max_queue_bytes:
            return Code.PAYLOAD_TOO_LARGE, "max_queue_bytes"
        if self.load().rows + waiting.request.rows > self.limits.max_queue_rows:
            return Code.OVERLOADED, "max_queue_rows"
        if held_bytes + size_bytes > self.limits.max_queue_bytes:
            return Code.OVERLOADED, "max_queue_bytes"
        return None

    def push(self, waiting: Waiting, row_ids: list[int]) -> None:
        self.turn += 1
        self.entries.append(Entry(waiting, row_ids, waiting.arrived_s, self.turn))

    def place(self, entry: Entry) -> tuple[float, int]:
        """Return what the line is sorted by: a remainder stands where a newcomer like it would."""
        waiting, ageing_s = entry.waiting, self.limits.ageing_s
        deadline_s = entry.since_s + (waiting.deadline_s - waiting.arrived_s)
        number = min(deadline_s, entry.since_s + ageing_s)
        return number + waiting.request.priority * 2 * ageing_s, entry.turn

    def leave(self, entry: Entry) -> Cut:
        self.entries.remove(entry)
        return Cut(entry.waiting, entry.start, entry.start + len(entry.left), sum(entry.left))

    def first(
        self, group: tuple[str, ...], now: float, batch_s: BatchSeconds, expired: set[Cut]
    ) -> Entry | None:
        line = sorted((one for one in self.entries if one.waiting.group == group), key=self.place)
        for entry in line:
            if now + batch_s(len(entry.left), sum(entry.left)) < entry.waiting.deadline_s:
                return entry
            expired.add(self.leave(entry))
        return None

    def rows_that_fit(self, entry: Entry, rows: int, ids: int) -> int:
        count = 0
        for row_ids in entry.left:
            rows, ids = rows + 1, ids + row_ids
            if rows > self.limits.max_batch_rows or ids > self.limits.max_batch_ids:
                break
            count += 1
        fits_some_batch = entry.waiting.ids_before is None
        return 0 if fits_some_batch and count < len(entry.left) else count

    def take(self, now: float, at_once: bool, batch_s: BatchSeconds) -> Look:
        if self.entries and not at_once and not self.full():
            groups = {one.waiting.group for one in self.entries}
            lines = [
                [one for one in self.entries if one.waiting.group == group] for group in groups
            ]
            firsts = [self.entries[0], *(min(line, key=self.place) for line in lines)]
            due_s = min(
                one.waiting.arrived_s
                + min(self.limits.max_delay_s, (one.waiting.deadline_s - one.waiting.arrived_s) / 2)
                for one in firsts
            )
            if now < due_s:
                return Look([], set(), due_s)
        expired: set[Cut] = set()
        heads = [self.first(group, now, batch_s, expired) for group in GROUPS]
        alive = [head for head in heads if head is not None]
        batch: list[Cut] = []
        if alive:
            group = min(alive, key=self.place).waiting.group
            while cut := self.next_cut(group, now, batch_s, (batch, expired)):
                batch.append(cut)
        return Look(batch, expired)

    def next_cut(
        self,
        group: tuple[str, ...],
        now: float,
        batch_s: BatchSeconds,
        look: tuple[list[Cut], set[Cut]],
    ) -> Cut | None:
        batch, expired = look
        if len(batch) == (self.limits.max_batch_requests or math.inf):
            return None
        entry = self.first(group, now, batch_s, expired)
        rows, ids = sum(cut.stop - cut.start for cut in batch), sum(cut.ids for cut in batch)
        count = self.rows_that_fit(entry, rows, ids) if entry else 0
        if entry is None or count == 0:
            return None
        cut = Cut(entry.waiting, entry.start, entry.start + count, sum(entry.left[:count]))
        due_s = min(one.waiting.deadline_s for one in [*batch, cut])
        if batch and now + batch_s(rows + count, ids + cut.ids) > due_s:
            return None
        if count == len(entry.left):
            return self.leave(entry)
        self.turn += 1
        entry.left, entry.start = entry.left[count:], cut.stop
        entry.since_s, entry.turn = now, self.turn
        return cut
