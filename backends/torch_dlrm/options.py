"""What can be set for a TorchRec DLRM."""

from dataclasses import dataclass, field

from backends.dlrm.ranges import MAKE_ONE, check_choice, check_least

# Values of "plan" and of "tables".
AUTO, FUSED, LEAN, ARTIFACT = "auto", "fused", "lean", "artifact"
COPY, MAP, UVM = "copy", "map", "uvm"
# Values of "interaction" beside AUTO, and of "graphs".
TORCH, TRITON, CUTILE = "torch", "triton", "cutile"
OFF = "off"
# Values of "dense".
FP32, BF16 = "fp32", "bf16"


@dataclass(frozen=True, slots=True)
class TorchDlrmOptions:
    """Serve one TorchRec DLRM artifact: a folder of ``narsil export`` or a bare TorchScript file.

    The last group describes a bare file. What is left empty is read off the file where possible;
    for a folder, name and version override the manifest.
    """

    path: str = field(
        default="", metadata={"help": "artifact folder, or a bare model.pt", "missing": MAKE_ONE}
    )
    device: str = field(default="cpu", metadata={"help": "cpu, or cuda:N"})
    lanes: int = field(
        default=0, metadata={"help": "forwards at once; 0: one per usable CPU, one on a GPU"}
    )
    intra_op_threads: int = field(
        default=0, metadata={"help": "threads inside one forward; 0: usable CPUs / lanes"}
    )
    plan: str = field(
        default="auto",
        metadata={
            "help": "auto: fused (CPU) or lean, if proven to score the same; fused, lean: that or"
            " fail; artifact: as it came"
        },
    )
    tables: str = field(
        default="copy",
        metadata={
            "help": "of fused and lean plans: copy into the device's memory; map the file,"
            " unchanged from then on (CPU); uvm: host memory that a GPU reads"
        },
    )
    dense: str = field(
        default="fp32",
        metadata={"help": "of a lean plan: dense layers in fp32 or bf16 (CPUs with AMX; docs)"},
    )
    interaction: str = field(
        default="auto",
        metadata={
            "help": "lean plan on a GPU: auto (triton if proven right there, else torch), torch,"
            " triton or cutile"
        },
    )
    graphs: str = field(
        default="auto",
        metadata={"help": "lean plan on a GPU: auto replays CUDA graphs if that works; off"},
    )
    max_batch_rows: int = field(default=2048, metadata={"help": "most rows in one forward"})
    ids: tuple[str, ...] = field(
        default=(),
        metadata={"help": "FEATURE=POLICY (*: all others): ids without a row; see docs/ids.md"},
    )
    cache_dir: str = field(
        default="~/.cache/narsil", metadata={"help": "compiled kernels; trusted like the program"}
    )

    name: str = field(default="", metadata={"help": "model name"})
    version: str = field(default="", metadata={"help": "model version"})
    feature_names: tuple[str, ...] = field(
        default=(), metadata={"help": "id features in wire order"}
    )
    table_rows: tuple[int, ...] = field(
        default=(), metadata={"help": "rows of each feature's table, in the same order"}
    )
    dense_features: int = field(default=0, metadata={"help": "dense values per row"})
    outputs: tuple[str, ...] = field(default=(), metadata={"help": "outputs to serve; empty: all"})

    def __post_init__(self) -> None:
        """Refuse what no model can be served with. Raises ValueError."""
        check_least(self, "max_batch_rows", 1)
        check_least(self, "lanes", 0)
        check_least(self, "intra_op_threads", 0)
        check_least(self, "dense_features", 0)
        check_choice(self, "plan", (AUTO, FUSED, LEAN, ARTIFACT))
        check_choice(self, "tables", (COPY, MAP, UVM))
        check_choice(self, "interaction", (AUTO, TORCH, TRITON, CUTILE))
        check_choice(self, "graphs", (AUTO, OFF))
        check_choice(self, "dense", (FP32, BF16))
