"""What replicas must have besides what they load: the rows that were replaced, in their order."""

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scheduler.backend import TableRows

# Rows that no longer count may take as much memory as those that do, and so many more.
_SPARE_ROWS = 4096


class Changes:
    """The rows in force, and ``state``: the number of the last change, 0 as loaded.

    ``turn`` is held while a change is made, and while an actor is found to have them all. Rows are
    kept in FP32: at worst those of all tables.
    """

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.state = 0
        self._numbers = 0
        self._log: list[TableRows] = []
        self._rows = self._kept_rows = 0

    def number(self) -> int:
        """Return a number that no change has had, whether or not it comes to be in force."""
        self._numbers += 1
        return self._numbers

    def add(self, state: int, tables: Sequence[TableRows]) -> None:
        """Let ``tables`` be in force, on top of what is, as ``state``."""
        self.state = state
        self._log.extend(tables)
        self._rows += sum(len(each.rows) for each in tables)
        if self._rows > 2 * self._kept_rows + _SPARE_ROWS:
            self._drop_replaced()

    def clear(self, state: int) -> None:
        """Let nothing be in force, as ``state``."""
        self.state = state
        self._log.clear()
        self._rows = self._kept_rows = 0

    def in_force(self) -> tuple[TableRows, ...]:
        """Return what makes tables as they were loaded what they are now, in this order."""
        self._drop_replaced()
        return tuple(self._log)

    def _drop_replaced(self) -> None:
        # In their order: two names may be one table.
        kept: list[TableRows] = []
        seen: dict[str, npt.NDArray[np.bool_]] = {}
        for each in reversed(self._log):
            known = _long_enough(seen.get(each.table), each.rows)
            new = ~known[each.rows]
            known[each.rows] = True
            seen[each.table] = known
            if new.all():
                kept.append(each)
            elif new.any():
                kept.append(TableRows(each.table, each.rows[new], each.values[new]))
        self._log = kept[::-1]
        self._rows = self._kept_rows = sum(len(each.rows) for each in kept)


def _long_enough(
    known: npt.NDArray[np.bool_] | None, rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    count = int(rows.max(initial=-1)) + 1
    if known is None:
        return np.zeros(count, np.bool_)
    return np.pad(known, (0, max(0, count - len(known))))
