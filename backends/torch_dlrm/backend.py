"""TorchRec DLRM artifacts behind the Backend protocol."""

from backends.dlrm.updatable import LoadedTables, UpdatableDlrmBackend
from backends.torch_dlrm.options import TorchDlrmOptions
from scheduler.errors import LoadError

# Shared libraries that are no part of any package: they come with the driver.
_OF_THE_DRIVER = ("libnvidia-ml", "libcuda.so")


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
        try:
            from backends.torch_dlrm.loading import load  # noqa: PLC0415
        except OSError as error:
            raise LoadError(_why_not(error)) from error

        return load(self._options)


def _why_not(error: OSError) -> str:
    """Return why a library of PyTorch's or FBGEMM's cannot be loaded."""
    why = str(error.__cause__ or error)
    if any(library in why for library in _OF_THE_DRIVER):
        why += (
            ". That comes with NVIDIA's driver, which the CUDA builds need on any device: give a"
            " container its GPU (--gpus all), or take the CPU builds (extra 'cpu')"
        )
    return f"PyTorch or FBGEMM cannot be loaded: {why}"
