"""What of loading and serving a model needs PyTorch: everything but the fused plan."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.dlrm.gather import Staging
from backends.torch_dlrm.answers import Answers
from backends.torch_dlrm.artifact import Derived, Facts
from backends.torch_dlrm.device import Cpu, Module
from backends.torch_dlrm.gpu.hardware import Gpu
from backends.torch_dlrm.gpu.load import artifact_on_gpu, lean_on_gpu
from backends.torch_dlrm.gpu.packing import Form
from backends.torch_dlrm.lean import Lean
from backends.torch_dlrm.lean_lane import LeanLane
from backends.torch_dlrm.options import FP32, TorchDlrmOptions
from backends.torch_dlrm.probes import TOLERANCE, Probe, difference, wider
from backends.torch_dlrm.proof import prove
from backends.torch_dlrm.serving import CPU, Gather, RunGathered, Serving
from backends.torch_dlrm.unchanged import load_model
from backends.torch_dlrm.weights import Dlrm
from scheduler.errors import LoadError

_cpu: Any = torch.cpu
# A probe's bags have up to 40 ids, which makes larger sums, and errors, than requests have.
_ROUNDED_TOLERANCE = 0.1
_log = logging.getLogger(__name__)


def as_it_came(path: Path, device: str) -> tuple[Module, Derived]:
    """Load the file at ``path`` to run as it came, and what it says. Raises LoadError."""
    return load_model(path, torch.device(device))


def lean_on(
    device: str,
    options: TorchDlrmOptions,
    dlrm: Dlrm,
    output: str,
    lanes: int,
    proof: Callable[..., str],
) -> Serving:
    """Return what serves the lean plan on a GPU. Raises NotRecognisedError or LoadError."""
    return lean_on_gpu(options, dlrm, output, lanes, proof, Gpu(torch.device(device)))


def lean_on_cpu(dense: str, dlrm: Dlrm, probes: list[Probe], answers: Answers) -> Lean:
    """Return the lean plan, proven and its layers in ``dense``.

    Raises NotRecognisedError or LoadError.
    """
    lean = Lean(dlrm, answers.output, copy=False)
    # One thread, as it serves: where others are busy, teams of threads took twenty times as long.
    run = Cpu(lean, threads=1).run
    prove(run, dlrm, wider(probes) if lean.reorders else probes, answers)
    if dense != FP32:
        lean.round_layers(dlrm, dense)
        _check_rounded(run, probes, answers, dense)
    return lean


def _check_rounded(run: RunGathered, probes: list[Probe], answers: Answers, dense: str) -> None:
    """Refuse layers whose rounding changes what the model says. Raises LoadError."""
    if not _cpu.get_capabilities().get("amx_bf16"):
        _log.warning("--dense %s: this CPU has no AMX, on which alone it is known to pay", dense)
    for probe, expected in zip(probes, answers.scores, strict=True):
        gap = difference(run(probe.inputs)[answers.output], expected)
        if probe.tolerance == TOLERANCE and not gap <= _ROUNDED_TOLERANCE:
            raise LoadError(
                f"--dense {dense}: {len(expected)} probe rows differ by {gap:.3g} from FP32, more "
                f"than {_ROUNDED_TOLERANCE:g}: this model needs --dense {FP32}"
            )


def serving_of(
    module: Module,
    facts: Facts,
    options: TorchDlrmOptions,
    device: str,
    parallelism: tuple[int, int],
) -> Serving:
    """Return what serves ``module`` on ``device``, with lanes and threads a forward."""
    (lanes, threads), rows = parallelism, options.max_batch_rows
    if device != CPU:
        form = Form(facts.layout, facts.dense_features)
        return artifact_on_gpu(module, form, lanes, rows, Gpu(torch.device(device)))

    def make_gather() -> Gather:
        staging = Staging(facts.layout, facts.dense_features, rows, np.empty)
        return staging.gather_distinct if isinstance(module, Lean) else staging.gather

    warmed = module.warmed_rows if isinstance(module, Lean) else ()
    return Serving([_lane(module, threads) for _ in range(lanes)], make_gather, rows, {}, warmed)


def _lane(module: Module, threads: int) -> RunGathered:
    lane = LeanLane(module, threads) if isinstance(module, Lean) else Cpu(module, threads)
    return lane.run
