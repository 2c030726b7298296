"""DLRMs in ONNX files behind the Backend protocol."""

from typing import TYPE_CHECKING

from backends.onnx_dlrm.options import OnnxDlrmOptions
from scheduler.backend import Checked, Compute
from scheduler.errors import LoadError
from scheduler.types import Batch, InferRequest, ModelSpec

if TYPE_CHECKING:
    from backends.onnx_dlrm.runtime import Loaded


class OnnxDlrmBackend:
    """Serve one ONNX DLRM with ONNX Runtime, on the CPU."""

    Options = OnnxDlrmOptions

    def __init__(self, options: OnnxDlrmOptions) -> None:
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
        # The command line reads this module's Options, also where the extra is not installed.
        try:
            from backends.onnx_dlrm.runtime import load  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise LoadError(
                f"{error}; install this project's extra 'onnx': pip install '.[onnx]' in its folder"
            ) from error
        self._loaded = load(self._options)

    def check(self, request: InferRequest) -> Checked | None:
        """Make rows of ids; refuse what a lookup would misread. Raises ServingError."""
        return self._model.rules.check(request)

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
