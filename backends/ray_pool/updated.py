"""The tables of a replica's backend: changed in two steps, or brought up to date in one."""

import abc
from collections.abc import Callable, Sequence
from dataclasses import replace

from backends.ray_pool.alive import Alive
from backends.ray_pool.refused import Refused
from scheduler.backend import TableRows, TableSpec, Updatable
from scheduler.errors import Code, ServingError

_NONE = -1  # the number of no change


class UpdatedTables:
    """Replace rows of ``tables`` of the model ``name``, if it has any that can change.

    ``state`` is the number of the last change, 0 as loaded.
    """

    def __init__(self, name: str, tables: Updatable | None) -> None:
        self.state = 0
        self._name = name
        self._tables = tables
        self._ready: tuple[int, Callable[[], None]] | None = None

    def specs(self) -> tuple[TableSpec, ...] | Refused:
        """Return the tables, or why they cannot change."""
        try:
            return self._updatable.update_tables()
        except ServingError as error:
            return Refused.of(error)

    def prepare(self, state: int, tables: Sequence[TableRows]) -> Refused | None:
        """Make of ``tables`` what is stored; ``commit`` writes it."""
        try:
            self._ready = state, self._updatable.prepare_update(tables)
        except ServingError as error:
            return Refused.of(error)
        return None

    def commit(self, state: int) -> Refused | None:
        """Write what was prepared as ``state``."""
        ready, self._ready = self._ready, None
        if ready is None or ready[0] != state:
            return Refused(Code.UNAVAILABLE, "not updated: the replica came up meanwhile")
        before, self.state = self.state, _NONE  # if it raises something else: half of it
        try:
            ready[1]()
        except ServingError as error:  # and nothing changed
            self.state = before
            return Refused.of(error)
        self.state = state
        return None

    def roll_back(self, state: int) -> int | Refused:
        """Restore every row as it was loaded, as ``state``; return how many were replaced."""
        try:
            rows = self._updatable.roll_back()
        except ServingError as error:
            return Refused.of(error)
        self.state = state
        return rows

    def catch_up(self, state: int, tables: Sequence[TableRows]) -> None:
        """Be as ``tables`` on top of what was loaded. Raises ServingError."""
        self._updatable.roll_back()
        for table in tables:  # one by one: two names may be one table
            self._updatable.prepare_update([table])()
        self.state = state

    @property
    def _updatable(self) -> Updatable:
        if self._tables is None:
            detail = f"model {self._name!r}: the backend of its replicas takes no embedding updates"
            raise ServingError(Code.UNSUPPORTED, detail)
        return self._tables


class UpdatedActor(abc.ABC):
    """What the gateway asks of an actor about its tables, once it has loaded them."""

    _tables: UpdatedTables

    @abc.abstractmethod
    def alive(self) -> Alive:
        """Return that it is, once the model is loaded, or why that failed."""

    def prepare_update(self, state: int, tables: Sequence[TableRows]) -> Refused | None:
        """Make of ``tables`` what is stored; ``commit_update`` writes it as ``state``."""
        return self._tables.prepare(state, tables)

    def commit_update(self, state: int) -> Refused | None:
        """Write what was prepared."""
        return self._tables.commit(state)

    def roll_back(self, state: int) -> int | Refused:
        """Restore every row as it was loaded; return how many were replaced."""
        return self._tables.roll_back(state)

    def catch_up(self, state: int, tables: Sequence[TableRows]) -> Alive:
        """Be as others are: ``tables`` on top of what was loaded. Returns what ``alive`` does."""
        try:
            self._tables.catch_up(state, tables)
        except ServingError as error:
            return replace(self.alive(), failure=f"cannot catch up: {error}")
        return self.alive()
