"""TorchRec DLRM artifacts behind the Backend protocol."""

from backends.dlrm.updatable import LoadedTables, UpdatableDlrmBackend
from backends.torch_dlrm.options import TorchDlrmOptions


class TorchDlrmBackend(UpdatableDlrmBackend):
    """Serve one TorchScript DLRM with the FBGEMM kernels, on a CPU or one GPU."""

    Options = TorchDlrmOptions

    def __init__(self, options: TorchDlrmOptions) -> None:
        super().__init__(
            "install what it needs: this project's extra 'cpu' or 'cuda'; "
            "or serve without PyTorch: --backend native_dlrm"
        )
        self._options = options

    def _load(self) -> LoadedTables:
        from backends.torch_dlrm.loading import load  # noqa: PLC0415

        return load(self._options)
