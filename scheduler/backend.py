"""The compute plug point. A third party implements this class and registers it under
``narsil.backends``; ``tests/contract`` is its acceptance test.

A plug-in is a class with a frozen ``Options`` dataclass and ``__init__(options)``; it imports only
``scheduler.types``, ``scheduler.errors`` and this module, and heavy libraries only in ``load``.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

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
