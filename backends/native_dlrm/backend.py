"""DLRMs without PyTorch behind the Backend protocol."""

from typing import TYPE_CHECKING

from backends.jagged import check_jagged
from backends.native_dlrm.options import NativeDlrmOptions
from scheduler.backend import Compute
from scheduler.errors import LoadError
from scheduler.types import Batch, InferRequest, ModelSpec

if TYPE_CHECKING:
    from backends.native_dlrm.runtime import Loaded


class NativeDlrmBackend:
    """Serve one DLRM on the CPU with NumPy and compiled kernels."""

    Options = NativeDlrmOptions

    def __init__(self, options: NativeDlrmOptions) -> None:
        self._options = options
        self._loaded: Loaded | None = None

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
        # The command line reads this module's Options, and needs none of what a model does.
        try:
            from backends.native_dlrm.runtime import load  # noqa: PLC0415

            self._loaded = load(self._options)
        except ModuleNotFoundError as error:
            raise LoadError(
                f"{error}; install this project's extra 'native':"
                " pip install '.[native]' in its folder"
            ) from error

    def check(self, request: InferRequest) -> None:
        """Refuse ids and lengths that a lookup would misread. Raises ServingError."""
        check_jagged(self._model.layout, request)

    def prepare(self, batch: Batch) -> Compute:
        """Gather ``batch`` into host buffers; return one forward over them."""
        return self._model.runtime.prepare(batch)

    def close(self) -> None:
        """Let go of the model."""
        self._loaded = None

    @property
    def _model(self) -> "Loaded":
        if self._loaded is None:
            raise RuntimeError("load() has not been called, or close() has")
        return self._loaded
