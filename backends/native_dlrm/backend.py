"""DLRMs without PyTorch behind the Backend protocol."""

from backends.dlrm.backend import DlrmBackend, Loaded
from backends.native_dlrm.options import NativeDlrmOptions


class NativeDlrmBackend(DlrmBackend):
    """Serve one DLRM on the CPU with NumPy and compiled kernels."""

    Options = NativeDlrmOptions

    def __init__(self, options: NativeDlrmOptions) -> None:
        super().__init__(
            "install this project's extra 'native': pip install '.[native]' in its folder"
        )
        self._options = options

    def _load(self) -> Loaded:
        from backends.native_dlrm.runtime import load  # noqa: PLC0415

        return load(self._options)
