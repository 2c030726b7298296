"""The Backend protocol around a loaded DLRM, whatever computes it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from backends.ids.rules import IdRules
from backends.memory import give_back
from scheduler.backend import Checked, Compute
from scheduler.errors import LoadError
from scheduler.types import Batch, InferRequest, ModelSpec


class Prepares(Protocol):
    """What gathers batches and computes them."""

    def prepare(self, batch: Batch) -> Compute:
        """Gather ``batch`` into host buffers; return one forward over them."""


class Loaded(Protocol):
    """A model ready to serve."""

    @property
    def runtime(self) -> Prepares:
        """What computes it."""

    @property
    def rules(self) -> IdRules:
        """What makes rows of ids."""

    @property
    def spec(self) -> ModelSpec:
        """What it takes and gives."""

    @property
    def lanes(self) -> int:
        """How many forwards may run at once."""


LoadedModel = TypeVar("LoadedModel", bound=Loaded)


class DlrmBackend(ABC, Generic[LoadedModel]):
    """Serve one DLRM; a backend adds ``Options``, how it is loaded and what that needs."""

    def __init__(self, needs: str) -> None:
        self._needs = needs
        self._loaded: LoadedModel | None = None

    @abstractmethod
    def _load(self) -> LoadedModel:
        """Load and warm up the model. Raises LoadError.

        What is heavy is imported here: the command line reads ``Options`` without it.
        """

    @property
    def spec(self) -> ModelSpec:
        """What the model takes and gives."""
        return self._model.spec

    @property
    def lanes(self) -> int:
        """How many forwards may run at once."""
        return self._model.lanes

    def load(self) -> None:
        """Load and warm up the model. Raises LoadError."""
        try:
            self._loaded = self._load()
        except ModuleNotFoundError as error:
            raise LoadError(f"{error}; {self._needs}") from error

    def check(self, request: InferRequest) -> Checked | None:
        """Make rows of ids; refuse what a lookup would misread. Raises ServingError."""
        return self._model.rules.check(request)

    def checker(self) -> Callable[[InferRequest], Checked | None]:
        """Return what makes rows of ids, without the model."""
        return self._model.rules.check

    def prepare(self, batch: Batch) -> Compute:
        """Gather ``batch`` into host buffers; return one forward over them."""
        return self._model.runtime.prepare(batch)

    def close(self) -> None:
        """Let go of the model."""
        self._loaded = None
        give_back()

    @property
    def _model(self) -> LoadedModel:
        if self._loaded is None:
            raise RuntimeError("load() has not been called, or close() has")
        return self._loaded
