"""Tables that are being served, and how their rows are replaced meanwhile."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from backends.dlrm.stored_rows import Quantises, UnstorableError, stored_rows
from scheduler.backend import TableRows, TableSpec
from scheduler.errors import Code, ServingError, invalid
from scheduler.pace import Pace

Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int64]

# Tables are written together while they have no more rows than this, in one pause of the lanes:
# 0.1 ms once the rows are in the caches.
PAUSE_ROWS = 8192
# Rows that are kept, and warmed, without a rest.
_STEP_ROWS = 1024
# How long the batches under way may take before an update is given up.
_PATIENCE_S = 10.0


class Lanes(Protocol):
    """What batches pass through."""

    def idle(self) -> bool:
        """Return whether none computes just now."""

    def held(self, timeout_s: float | None) -> AbstractContextManager[None]:
        """Keep batches out within the block, which begins when none computes any more."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveTable:
    """One table: ``data`` is (rows, bytes of a row) in memory that only this process sees.

    ``first_seen`` keeps what replaced rows were, ``touched`` says which are in there.
    """

    spec: TableSpec
    data: Bytes
    touched: npt.NDArray[np.bool_] = field(init=False)
    first_seen: list[tuple[Ids, Bytes]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Begin with nothing replaced; the memory is used as rows are."""
        object.__setattr__(self, "touched", np.zeros(len(self.data), np.bool_))

    def remember(self, rows: Ids) -> None:
        """Keep what ``rows`` are now, unless what they were at first is kept already."""
        new = rows[~self.touched[rows]]
        if len(new):
            self.first_seen.append((new, self.data.take(new, axis=0)))
            self.touched[new] = True

    def warm(self, rows: Ids) -> None:
        """Write ``rows`` as they are: pages are made this process's own, lines come close.

        Nobody sees a difference, and the write that counts will find everything at hand.
        """
        items = _items(self.data)
        items[rows] = items.take(rows)

    def write(self, rows: Ids, stored: Bytes) -> None:
        """Replace ``rows`` by ``stored`` (n, bytes of a row)."""
        _items(self.data)[rows] = _items(stored)

    def forget(self) -> None:
        """Take the rows as they are for those that were loaded."""
        for rows, _ in self.first_seen:
            self.touched[rows] = False
        self.first_seen.clear()


def _items(data: Bytes) -> npt.NDArray[np.void]:
    """Return rows of bytes as items: one copy a row, not one a byte, and without Python's lock."""
    return data.view(np.dtype((np.void, data.shape[1])))[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    table: LiveTable
    rows: Ids
    stored: Bytes


class LiveTables:
    """Replace rows of ``tables`` while batches wait outside ``lanes``; one call at a time.

    Tables whose memory is the same are one, whichever of their names is used. ``find_faster``
    is asked once, when the first update comes, for what quantises faster than NumPy.
    """

    def __init__(
        self,
        tables: Sequence[LiveTable],
        lanes: Lanes,
        find_faster: Callable[[], Quantises | None] = lambda: None,
    ) -> None:
        self._lanes = lanes
        self._faster = functools.cache(find_faster)  # when the first update comes
        self._specs = tuple(table.spec for table in tables)
        by_place = {table.data.ctypes.data: table for table in reversed(tables)}
        self._tables = {table.spec.name: by_place[table.data.ctypes.data] for table in tables}

    def update_tables(self) -> tuple[TableSpec, ...]:
        """Return every table, in wire order."""
        return self._specs

    def prepare_update(self, tables: Sequence[TableRows]) -> Callable[[], None]:
        """Quantise the rows; return what writes them. Raises ServingError (INVALID_REQUEST)."""
        self._check_shared([table.table for table in tables])
        pace = Pace(self._lanes.idle)
        writes = [self._stored(table, pace) for table in tables]

        def write() -> None:
            pace = Pace(self._lanes.idle)  # of the thread that writes
            for each in writes:
                _by_steps(each.table.remember, each.rows, pace)
            self._write(writes, pace)

        return write

    def roll_back(self) -> int:
        """Restore what was loaded; return how many rows had been replaced."""
        changed = [table for table in dict.fromkeys(self._tables.values()) if table.first_seen]
        writes = [_before(table) for table in changed]
        self._write(writes, Pace(self._lanes.idle))
        for table in changed:
            table.forget()
        return sum(len(each.rows) for each in writes)

    def _check_shared(self, names: Sequence[str]) -> None:
        used: dict[LiveTable, str] = {}
        for name in names:
            other = used.setdefault(self._tables[name], name)
            if other != name:
                raise invalid(f"tables {other!r} and {name!r} are one table; name it once")

    def _stored(self, table: TableRows, pace: Pace) -> _Write:
        live = self._tables[table.table]
        row_bytes, faster = live.data.shape[1], self._faster()
        try:
            stored = stored_rows(live.spec.kind, table.values, row_bytes, faster, pace.rest)
        except UnstorableError as error:
            row = table.rows[error.place]
            raise invalid(f"table {table.table!r}: row {row} {error}") from error
        return _Write(live, table.rows, stored)

    def _write(self, writes: Sequence[_Write], pace: Pace) -> None:
        patience_s: float | None = _PATIENCE_S
        for together in _pauses(writes):
            for each in together:
                _by_steps(each.table.warm, each.rows, pace)
            pace.wait_for_idle()  # who comes next does not wait for who is out
            try:
                with self._lanes.held(patience_s):
                    for each in together:
                        each.table.write(each.rows, each.stored)
            except TimeoutError as error:
                raise ServingError(Code.UNAVAILABLE, f"not updated: {error}") from error
            patience_s = None  # half of it is written: the rest follows, however long it takes


def _by_steps(step: Callable[[Ids], None], rows: Ids, pace: Pace) -> None:
    for start in range(0, len(rows), _STEP_ROWS):
        step(rows[start : start + _STEP_ROWS])
        pace.rest()


def _before(table: LiveTable) -> _Write:
    rows = np.concatenate([rows for rows, _ in table.first_seen])
    return _Write(table, rows, np.concatenate([stored for _, stored in table.first_seen]))


def _pauses(writes: Sequence[_Write]) -> Iterator[list[_Write]]:
    """Yield what is written in one pause each: whole tables, few rows or one table."""
    together: list[_Write] = []
    rows = 0
    for each in writes:
        if together and rows + len(each.rows) > PAUSE_ROWS:
            yield together
            together, rows = [], 0
        together.append(each)
        rows += len(each.rows)
    if together:
        yield together
