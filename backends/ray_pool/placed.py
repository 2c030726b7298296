"""What has been placed on a Ray cluster, behind the Backend protocol."""

import abc
from collections.abc import Callable, Sequence
from typing import Protocol

from backends.ray_pool.options import RayPoolOptions
from scheduler.backend import Checked, Compute, TableRows, TableSpec, Updatable
from scheduler.errors import LoadError
from scheduler.types import Batch, InferRequest, ModelSpec

_NEEDS = "install this project's extra 'ray': pip install -e '.[ray]' in its folder"


class Placed(Protocol):
    """A model on the cluster: its replicas, or its shards."""

    spec: ModelSpec
    lanes: int

    @property
    def tables(self) -> Updatable:
        """What replaces rows on the cluster."""

    def check(self, request: InferRequest) -> Checked | None:
        """Refuse what the model would misread. Raises ServingError."""

    def lanes_for(self, waiting_rows: int) -> int:
        """Return how many batches may be under way now."""

    def prepare(self, batch: Batch) -> Compute:
        """Return what computes ``batch`` on the cluster."""

    def processes(self) -> dict[int, str]:
        """Return the process of each actor that is up, with its node."""

    def close(self) -> None:
        """End every actor."""


class PlacedBackend(abc.ABC):
    """Serve one model with actors; the scheduler batches here, for all of them."""

    def __init__(self, options: RayPoolOptions) -> None:
        self._options = options
        self._placed: Placed | None = None

    @property
    def spec(self) -> ModelSpec:
        """What the model takes and gives."""
        return self._model.spec

    @property
    def lanes(self) -> int:
        """How many batches may be under way at once, at most."""
        return self._model.lanes

    def lanes_for(self, waiting_rows: int) -> int:
        """Return how many may be under way now, with the replicas that are up."""
        return self._model.lanes_for(waiting_rows)

    def load(self) -> None:
        """Join the cluster, place the actors and wait for them. Raises LoadError."""
        try:
            self._placed = self._load()
        except ModuleNotFoundError as error:
            raise LoadError(f"{error}; {_NEEDS}") from error

    @abc.abstractmethod
    def _load(self) -> Placed:
        """Place the actors. Raises LoadError, or ModuleNotFoundError without Ray."""

    def check(self, request: InferRequest) -> Checked | None:
        """Refuse what the model would misread, if that can be told here. Raises ServingError."""
        return self._model.check(request)

    def prepare(self, batch: Batch) -> Compute:
        """Make ``batch`` ready to travel; return what computes it on the cluster."""
        return self._model.prepare(batch)

    def update_tables(self) -> tuple[TableSpec, ...]:
        """Return the tables whose rows can be replaced. Raises ServingError."""
        return self._model.tables.update_tables()

    def prepare_update(self, tables: Sequence[TableRows]) -> Callable[[], None]:
        """Make new rows ready on every replica; return what writes them. Raises ServingError."""
        return self._model.tables.prepare_update(tables)

    def roll_back(self) -> int:
        """Restore every row as it was loaded; return how many had been replaced."""
        return self._model.tables.roll_back()

    def processes(self) -> dict[int, str]:
        """Return the process of each actor that is up, with the node it is on, for who watches."""
        return self._model.processes()

    def close(self) -> None:
        """End every actor; the process stays part of the cluster until it ends."""
        if self._placed is not None:
            self._placed.close()
        self._placed = None

    @property
    def _model(self) -> Placed:
        if self._placed is None:
            raise RuntimeError("load() has not been called, or close() has")
        return self._placed
