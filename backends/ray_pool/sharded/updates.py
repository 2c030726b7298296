"""Embedding updates of tables that are shared out: every part has them, or none has."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from backends.ray_pool.fanout import Fanout
from backends.ray_pool.sharded.plan import Plan
from backends.ray_pool.sharded.routes import Names, shared_out
from scheduler.backend import TableRows, TableSpec
from scheduler.errors import Code, ServingError, invalid

T = TypeVar("T")


class Lanes(Protocol):
    """What every batch passes through, with all that it asks the parts."""

    def held(self, timeout_s: float | None) -> contextlib.AbstractContextManager[None]:
        """Keep batches out within the block, which begins when none is under way any more."""


class SharedOut:
    """Replace rows of the tables that ``plan`` has cut, each part behind one of ``parts``.

    What every part could make ready is written, by all of them while no batch is under way; one
    that is lost meanwhile has it before it is asked again. One call at a time.
    """

    def __init__(
        self,
        tables: tuple[TableSpec, ...],
        names: Names,
        plan: Plan,
        parts: Sequence[Fanout],
        lanes: Lanes,
    ) -> None:
        self._tables = tables
        self._names = names
        self._plan = plan
        self._parts = parts
        self._lanes = lanes
        self._same = dict(zip(names.features, names.same, strict=True))
        self._replaced: dict[int, npt.NDArray[np.bool_]] = {}  # rows, by table

    def update_tables(self) -> tuple[TableSpec, ...]:
        """Return every table, in wire order."""
        return self._tables

    def prepare_update(self, tables: Sequence[TableRows]) -> Callable[[], None]:
        """Let every part make its rows; return what lets all write them. Raises ServingError."""
        self._check_shared([each.table for each in tables])
        asked = zip(self._parts, shared_out(self._names, self._plan, tables), strict=True)
        writes = _at_once([partial(part.prepare_update, own) for part, own in asked if own])
        return partial(self._write, writes, tuple(tables))

    def roll_back(self) -> int:
        """Restore what was loaded; return how many rows had been replaced. Raises ServingError."""
        for part in self._parts:
            part.check_up()
        with self._held():
            _at_once([part.roll_back for part in self._parts])
            rows = sum(int(np.count_nonzero(each)) for each in self._replaced.values())
            self._replaced.clear()
        return rows

    def _write(self, writes: Sequence[Callable[[], None]], tables: Sequence[TableRows]) -> None:
        with self._held():
            _at_once(writes)
            for each in tables:
                table = self._same[each.table]
                unknown = np.zeros(self._names.rows[table], np.bool_)
                self._replaced.setdefault(table, unknown)[each.rows] = True

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._lanes.held(self._parts[0].patience_s))
            except TimeoutError as error:
                raise ServingError(Code.UNAVAILABLE, f"not updated: {error}") from error
            yield

    def _check_shared(self, names: Sequence[str]) -> None:
        used: dict[int, str] = {}
        for name in names:
            other = used.setdefault(self._same[name], name)
            if other != name:
                raise invalid(f"tables {other!r} and {name!r} are one table; name it once")


def _at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return what ``calls`` return, each on a thread: parts do not wait for each other."""
    with ThreadPoolExecutor(max(1, len(calls))) as threads:
        return list(threads.map(lambda call: call(), calls))
