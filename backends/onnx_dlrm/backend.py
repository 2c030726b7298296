"""DLRMs in ONNX files behind the Backend protocol."""

from backends.dlrm.backend import DlrmBackend, Loaded
from backends.onnx_dlrm.options import OnnxDlrmOptions


class OnnxDlrmBackend(DlrmBackend[Loaded]):
    """Serve one ONNX DLRM with ONNX Runtime, on the CPU."""

    Options = OnnxDlrmOptions

    def __init__(self, options: OnnxDlrmOptions) -> None:
        super().__init__(
            "install this project's extra 'onnx': pip install -e '.[onnx]' in its folder"
        )
        self._options = options

    def _load(self) -> Loaded:
        from backends.onnx_dlrm.runtime import load  # noqa: PLC0415

        return load(self._options)
