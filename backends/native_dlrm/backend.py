"""DLRMs without PyTorch behind the Backend protocol."""

from backends.dlrm.updatable import LoadedTables, UpdatableDlrmBackend
from backends.native_dlrm.options import NativeDlrmOptions


class NativeDlrmBackend(UpdatableDlrmBackend):
    """Serve one DLRM on the CPU with NumPy and compiled kernels."""

    Options = NativeDlrmOptions

    def __init__(self, options: NativeDlrmOptions) -> None:
        super().__init__(
            "install this project's extra 'native': pip install -e '.[native]' in its folder"
        )
        self._options = options

    def _load(self) -> LoadedTables:
        from backends.native_dlrm.runtime import load  # noqa: PLC0415

        return load(self._options)
