"""What can be set for a DLRM in an ONNX file."""

from dataclasses import dataclass, field

from backends.dlrm.ranges import MAKE_ONE_ONNX, check_least


@dataclass(frozen=True, slots=True)
class OnnxDlrmOptions:
    """Serve one ONNX file on the CPU. Name and version override what the file says."""

    path: str = field(
        default="",
        metadata={
            "help": "ONNX file, or a folder with a model.onnx",
            "missing": MAKE_ONE_ONNX,
        },
    )
    lanes: int = field(
        default=0, metadata={"help": "forwards at once, one thread each; 0: one per usable CPU"}
    )
    max_batch_rows: int = field(default=2048, metadata={"help": "most rows in one forward"})
    ids: tuple[str, ...] = field(
        default=(),
        metadata={"help": "FEATURE=POLICY (*: all others): ids without a row; see docs/ids.md"},
    )
    name: str = field(default="", metadata={"help": "model name"})
    version: str = field(default="", metadata={"help": "model version"})

    def __post_init__(self) -> None:
        """Refuse what no model can be served with. Raises ValueError."""
        check_least(self, "max_batch_rows", 1)
        check_least(self, "lanes", 0)
