"""DLRMs without PyTorch behind the Backend protocol."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from backends.native_dlrm.options import NativeDlrmOptions
from scheduler.backend import Checked, Compute, TableRows, TableSpec
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
        # Numba takes half a second to import, and the command line reads this module's Options.
        try:
            from backends.native_dlrm.jit import keep_compiled_in  # noqa: PLC0415

            keep_compiled_in(Path(self._options.cache_dir))
            from backends.native_dlrm.runtime import load  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise LoadError(
                f"{error}; install this project's extra 'native':"
                " pip install '.[native]' in its folder"
            ) from error

        self._loaded = load(self._options)

    def check(self, request: InferRequest) -> Checked | None:
        """Make rows of ids; refuse what a lookup would misread. Raises ServingError."""
        return self._model.rules.check(request)

    def prepare(self, batch: Batch) -> Compute:
        """Gather ``batch`` into host buffers; return one forward over them."""
        return self._model.runtime.prepare(batch)

    def update_tables(self) -> tuple[TableSpec, ...]:
        """Return the tables whose rows can be replaced."""
        return self._model.tables.update_tables()

    def prepare_update(self, tables: Sequence[TableRows]) -> Callable[[], None]:
        """Quantise new rows; return what writes them. Raises ServingError."""
        return self._model.tables.prepare_update(tables)

    def roll_back(self) -> int:
        """Restore every row as it was loaded; return how many had been replaced."""
        return self._model.tables.roll_back()

    def close(self) -> None:
        """Let go of the model."""
        self._loaded = None

    @property
    def _model(self) -> "Loaded":
        if self._loaded is None:
            raise RuntimeError("load() has not been called, or close() has")
        return self._loaded
