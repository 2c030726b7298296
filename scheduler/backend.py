"""The compute plug point. A third party implements this class and registers it under
``narsil.backends``; ``tests/contract`` is its acceptance test.

A plug-in is a class with a frozen ``Options`` dataclass and ``__init__(options)``; it imports only
``scheduler.types``, ``scheduler.errors`` and this module, and heavy libraries only in ``load``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from scheduler.errors import Missed
from scheduler.types import Array, Batch, InferRequest, ModelSpec

# Computes one prepared batch: every output, first axis ``batch.rows``, in arrays the caller keeps.
Compute: TypeAlias = Callable[[], Mapping[str, Array]]


class Checked(NamedTuple):
    """A request as it is to be run, if not as it came, and the ids that were ``missed`` in it."""

    request: InferRequest
    missed: tuple[Missed, ...]


class Backend(Protocol):
    """Run one model: ``load`` once, then ``check`` and ``prepare`` freely, ``close`` once."""

    @property
    def spec(self) -> ModelSpec:
        """What the model takes and gives; valid after ``load``."""

    @property
    def lanes(self) -> int:
        """How many batches may be computed at once (at least 1); valid after ``load``."""

    def load(self) -> None:
        """Load and warm up; called once, off the event loop. Raises LoadError."""

    def check(self, request: InferRequest) -> Checked | None:
        """Refuse what the spec cannot say (an id out of range); called on the event loop, so fast.

        The scheduler has checked names, dtypes and shapes against ``spec`` before. A request that
        is not to be run as it came (ids that are hashed) is returned as another one of as many
        rows; its arrays are never written.
        Raises ServingError with INVALID_REQUEST.
        """

    def prepare(self, batch: Batch) -> Compute:
        """Gather the inputs of ``batch`` where the computation reads them; return what computes it.

        Called on a thread of the scheduler's, also while other batches compute, so that the next
        batch is ready when a lane becomes free. The result is called at most once, perhaps on
        another thread, with at most ``lanes`` such calls at a time; it should release the GIL.
        Whatever either step raises fails this batch only, but for DeviceLostError.
        """

    def close(self) -> None:
        """Release everything; no call follows."""


@runtime_checkable
class Elastic(Protocol):
    """What a backend has besides if it computes elsewhere, with more machines now and fewer then.

    ``lanes`` is then the most there can be. Its computations wait for others, so that the scheduler
    never runs one on the event loop by its own choice.
    """

    def lanes_for(self, waiting_rows: int) -> int:
        """Return how many batches may be computed at once now, while ``waiting_rows`` wait.

        At least 1, also while none could be. Called on the event loop whenever a queue or a lane
        has changed, so fast.
        """


@runtime_checkable
class Portable(Protocol):
    """What a backend has besides if requests can be checked where it is not loaded."""

    def checker(self) -> Callable[[InferRequest], Checked | None]:
        """Return what ``check`` does, as something that can be pickled; valid after ``load``."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One embedding table: the name of its feature, its rows, their width, how they are stored."""

    name: str
    rows: int
    dim: int
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class TableRows:
    """New rows of one table: ``rows`` (n,) int64, all different; ``values`` (n, dim) float32."""

    table: str
    rows: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


@runtime_checkable
class Updatable(Protocol):
    """What a backend has besides if rows of its tables can be replaced while it serves.

    One call at a time, off the event loop, while batches compute.
    """

    def update_tables(self) -> tuple[TableSpec, ...]:
        """Return the tables. Raises ServingError with UNSUPPORTED and why, if none can change."""

    def prepare_update(self, tables: Sequence[TableRows]) -> Callable[[], None]:
        """Make of checked rows what is stored; return what writes it.

        A batch sees all or nothing of what is written to a table. Until the result is called
        nothing has changed. Raises ServingError with INVALID_REQUEST for values that cannot be
        stored.
        """

    def roll_back(self) -> int:
        """Restore every row as it was loaded; return how many had been replaced."""
