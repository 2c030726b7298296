"""Rows to replace in a served model, and what is wrong with them. Nothing is written here."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.backend import TableRows, TableSpec
from scheduler.errors import ServingError, invalid, shown

# A delta's name goes into answers and logs.
MOST_ID_CHARACTERS = 200
# Rows whose values are looked at without a rest: 0.05 ms for 64 values each.
_STEP_ROWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """One set of rows; with the same ``id`` it is applied once.

    ``model`` and ``version`` name what it is for, as in a request: empty for the only model and
    the latest version. ``base`` is how many deltas must have been applied before, None for any.
    """

    id: str
    tables: tuple[TableRows, ...]
    model: str = ""
    version: str = ""
    base: int | None = None

    @property
    def rows(self) -> int:
        """How many rows it replaces."""
        return sum(len(table.rows) for table in self.tables)


def check_delta(
    delta: Delta, tables: Iterable[TableSpec], rest: Callable[[], None] = lambda: None
) -> None:
    """Refuse what must not reach ``tables``; ``rest`` is called between steps.

    Raises ServingError naming table, row and limit.
    """
    if not 0 < len(delta.id) <= MOST_ID_CHARACTERS:
        raise invalid(f"id has {len(delta.id)} characters; 1 to {MOST_ID_CHARACTERS} are allowed")
    known = {table.name: table for table in tables}
    _check_names([table.table for table in delta.tables], known)
    for table in delta.tables:
        _check_rows(table, known[table.table])
        rest()
        _check_values(table, known[table.table], rest)


def _check_names(names: Sequence[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise invalid(f"no table {shown(name)}; there are {_some(known)}")
    for name in names:
        if names.count(name) > 1:
            raise invalid(f"table {name!r} is given {names.count(name)} times")


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 10} more" if len(listed) > 10 else ""
    return ", ".join(listed[:10]) + more


def _check_rows(table: TableRows, spec: TableSpec) -> None:
    rows = table.rows
    wrong = (rows < 0) | (rows >= spec.rows)
    if wrong.any():
        row = rows[int(np.argmax(wrong))]
        raise _of(table, f"row {row}; it has {spec.rows} rows (0..{spec.rows - 1})")
    ordered = np.sort(rows)
    twice = ordered[1:] == ordered[:-1]
    if twice.any():
        raise _of(table, f"row {ordered[int(np.argmax(twice))]} is given more than once")


def _check_values(table: TableRows, spec: TableSpec, rest: Callable[[], None]) -> None:
    if table.values.shape != (len(table.rows), spec.dim):
        raise _of(
            table,
            f"values of shape {table.values.shape} for {len(table.rows)} rows of {spec.dim} values",
        )
    for start in range(0, len(table.values), _STEP_ROWS):
        finite = np.isfinite(table.values[start : start + _STEP_ROWS])
        if not finite.all():
            at = start + int(np.argmin(finite.all(axis=1)))
            raise _of(table, f"row {table.rows[at]} has NaN or infinity among its values")
        rest()


def _of(table: TableRows, what: str) -> ServingError:
    return invalid(f"table {table.table!r}: {what}")
