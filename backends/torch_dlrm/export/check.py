"""Re-run an artifact's golden batch the way it is served."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backends.dlrm.manifest import model_file, read_manifest
from backends.torch_dlrm.backend import TorchDlrmBackend
from backends.torch_dlrm.export.golden import Golden, read_golden
from backends.torch_dlrm.options import ARTIFACT, AUTO, TorchDlrmOptions
from backends.torch_dlrm.program_file import is_compiled
from scheduler.errors import LoadError, ServingError
from scheduler.types import Array, Batch
from scheduler.validate import validate

# The kernels of two CPUs differ by up to 3e-7; a wrong row, feature or table by 1e-2 and more.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class GoldenReport:
    """How far the scores are from the golden ones, and the golden ones from FP32."""

    rows: int
    difference: float
    quantisation: float
    score_std: float

    @property
    def passed(self) -> bool:
        """The scores are the golden ones; false also for NaN."""
        return self.difference <= TOLERANCE


def compare(golden: Golden, outputs: Mapping[str, Array]) -> GoldenReport:
    """Compare ``outputs`` for the golden inputs with the golden outputs."""
    return GoldenReport(
        rows=golden.rows,
        difference=_largest(golden.served, outputs),
        quantisation=_largest(golden.served, golden.fp32),
        score_std=float(np.concatenate([np.ravel(s) for s in golden.served.values()]).std()),
    )


def _largest(left: Mapping[str, Array], right: Mapping[str, Array]) -> float:
    wide = np.float64
    gaps = [left[name].astype(wide) - right[name].astype(wide) for name in left]
    return float(np.abs(np.concatenate(gaps)).max())


def check_artifact(folder: Path) -> GoldenReport:
    """Run the golden batch as a server would, on the device of the export. Raises LoadError."""
    device = read_manifest(folder).device
    try:
        golden = read_golden(folder)
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot read the golden batch of {folder}: {error}") from error
    # Whoever asks for the check trusts the folder, machine code in it too.
    plan = ARTIFACT if is_compiled(model_file(folder)) else AUTO
    options = TorchDlrmOptions(str(folder), device, 1, plan=plan, max_batch_rows=golden.rows)
    backend = TorchDlrmBackend(options)
    backend.load()
    request = golden.request()
    try:
        validate(backend.spec, request)
        backend.check(request)
    except ServingError as error:
        why = f"the golden batch of {folder} is no request for this model: {error.detail}"
        raise LoadError(why) from error
    return compare(golden, backend.prepare(Batch((request,)))())
