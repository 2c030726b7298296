"""The compute plug point. A third party implements this class and registers it under
``narsil.backends``; ``tests/contract`` is its acceptance test.

A plug-in is a class with a frozen ``Options`` dataclass and ``__init__(options)``; it imports only
``scheduler.types``, ``scheduler.errors`` and this module, and heavy libraries only in ``load``.
"""

from collections.abc import Mapping
from typing import Protocol

from scheduler.types import Array, Batch, InferRequest, ModelSpec


class Backend(Protocol):
    """Run one model: ``load`` once, then ``check`` and ``run`` freely, ``close`` once."""

    @property
    def spec(self) -> ModelSpec:
        """What the model takes and gives; valid after ``load``."""

    @property
    def lanes(self) -> int:
        """How many threads may be inside ``run`` at once (at least 1); valid after ``load``."""

    def load(self) -> None:
        """Load and warm up; called once, off the event loop. Raises LoadError."""

    def check(self, request: InferRequest) -> None:
        """Refuse what the spec cannot say (an id out of range); called on the event loop, so fast.

        The scheduler has checked names, dtypes and shapes against ``spec`` before.
        Raises ServingError with INVALID_REQUEST.
        """

    def run(self, batch: Batch) -> Mapping[str, Array]:
        """Return every output, first axis ``batch.rows``, in arrays the caller may keep.

        Called on a lane's own thread, with at most ``lanes`` calls at a time; should release the
        GIL. Whatever it raises fails this batch only.
        """

    def close(self) -> None:
        """Release everything; no call follows."""
