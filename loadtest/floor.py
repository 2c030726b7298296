"""The least time one forward of a DLRM can take on one core: its arithmetic and its bytes."""

import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Peak:
    """One core of this machine, measured by ``loadtest.peak``."""

    sgemm_gflops: float
    stream_gb_s: float
    row_ns: float


@dataclass(frozen=True, slots=True)
class Work:
    """What one forward has to do: ``flops`` and ``lookups`` a row, ``weight_bytes`` always."""

    flops: int
    lookups: int
    weight_bytes: int

    def floor_s(self, peak: Peak, rows: int) -> float:
        """Return the seconds that ``rows`` rows take at least.

        The dense weights are read once, or multiplied at the peak, whichever takes longer; the
        table rows come one by one from memory, each id of its own.
        """
        multiply_s = rows * self.flops / peak.sgemm_gflops / 1e9
        stream_s = self.weight_bytes / peak.stream_gb_s / 1e9
        return max(multiply_s, stream_s) + rows * self.lookups * peak.row_ns / 1e9


def measure_peak() -> Peak:
    """Measure one core, in a process that has only one."""
    command = [sys.executable, "-m", "loadtest.peak"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Peak(**json.loads(done.stdout))


def read_work(artifact: Path) -> Work:
    """Read the sizes from the manifest in an artifact folder. Raises OSError or KeyError."""
    manifest = json.loads((artifact / "manifest.json").read_text(encoding="utf-8"))
    tables, dim = len(manifest["tables"]), manifest["tables"][0]["dim"]
    vectors = tables + 1
    dense = [len(manifest["dense_names"]), *manifest["dense_layers"]]
    over = [dim + vectors * (vectors - 1) // 2, *manifest["over_layers"]]
    weights = sum(before * after for sizes in (dense, over) for before, after in pairwise(sizes))
    # Every pair of vectors once: the other half of the square is the same numbers again.
    products = vectors * (vectors - 1) // 2 * dim
    return Work(2 * (weights + products), tables, 4 * weights)
