"""What can be set for a DLRM computed without PyTorch."""

from dataclasses import dataclass, field

from backends.dlrm.ranges import MAKE_ONE, check_choice, check_least

# Values of "kernel".
AUTO, COMPILED, NUMBA = "auto", "compiled", "numba"
# Values of "tables".
MAP, COPY = "map", "copy"
# Values of "dense".
FP32, FP16 = "fp32", "fp16"


@dataclass(frozen=True, slots=True)
class NativeDlrmOptions:
    """Serve one DLRM on the CPU: an artifact folder, a bare TorchScript file or a converted folder.

    Name and version override the manifest's.
    """

    path: str = field(
        default="",
        metadata={
            "help": "artifact folder, bare model.pt, or folder of narsil convert",
            "missing": MAKE_ONE,
        },
    )
    lanes: int = field(default=0, metadata={"help": "forwards at once; 0: one per usable CPU"})
    max_batch_rows: int = field(default=2048, metadata={"help": "most rows in one forward"})
    ids: tuple[str, ...] = field(
        default=(),
        metadata={"help": "FEATURE=POLICY (*: all others): ids without a row; see docs/ids.md"},
    )
    verify: bool = field(
        default=True,
        metadata={"help": "read the whole file once: checksum and NaN (off: tables beyond memory)"},
    )
    tables: str = field(
        default="map",
        metadata={
            "help": "map the file, which must stay as it is from then on, or copy it into memory"
        },
    )
    kernel: str = field(
        default="auto",
        metadata={"help": "auto, compiled (C, built with the machine's compiler) or numba"},
    )
    dense: str = field(
        default="fp32",
        metadata={
            "help": "dense weights in memory: fp32, or fp16 (half the bytes; compiled kernel)"
        },
    )
    cache_dir: str = field(
        default="~/.cache/narsil", metadata={"help": "compiled kernels; trusted like the program"}
    )

    name: str = field(default="", metadata={"help": "model name"})
    version: str = field(default="", metadata={"help": "model version"})

    def __post_init__(self) -> None:
        """Refuse what no model can be served with. Raises ValueError."""
        check_least(self, "max_batch_rows", 1)
        check_least(self, "lanes", 0)
        check_choice(self, "tables", (MAP, COPY))
        check_choice(self, "kernel", (AUTO, COMPILED, NUMBA))
        check_choice(self, "dense", (FP32, FP16))
