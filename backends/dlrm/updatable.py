"""The Updatable protocol around a loaded DLRM."""

from collections.abc import Callable, Sequence
from typing import Protocol

from backends.dlrm.backend import DlrmBackend, Loaded
from scheduler.backend import TableRows, TableSpec, Updatable


class LoadedTables(Loaded, Protocol):
    """A model ready to serve, and its tables."""

    @property
    def tables(self) -> Updatable:
        """What replaces their rows."""


class UpdatableDlrmBackend(DlrmBackend[LoadedTables]):
    """Serve one DLRM whose rows can be replaced meanwhile."""

    def update_tables(self) -> tuple[TableSpec, ...]:
        """Return the tables whose rows can be replaced. Raises ServingError."""
        return self._model.tables.update_tables()

    def prepare_update(self, tables: Sequence[TableRows]) -> Callable[[], None]:
        """Quantise new rows; return what writes them. Raises ServingError."""
        return self._model.tables.prepare_update(tables)

    def roll_back(self) -> int:
        """Restore every row as it was loaded; return how many had been replaced."""
        return self._model.tables.roll_back()
