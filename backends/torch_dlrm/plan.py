"""Choose how a model is computed: by the lean plan where it is proven right, else as it came."""

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from backends.dlrm.artifact import Artifact
from backends.torch_dlrm.answers import ANSWERS_FILE, Answers, NoAnswerError, ask, read_answers
from backends.torch_dlrm.artifact import Derived
from backends.torch_dlrm.device import Cpu, Module, Serving
from backends.torch_dlrm.formats import load_model, read_weights
from backends.torch_dlrm.gpu.hardware import Gpu
from backends.torch_dlrm.gpu.load import lean_on_gpu
from backends.torch_dlrm.lean import Lean
from backends.torch_dlrm.options import ARTIFACT, AUTO, COPY, FP32, LEAN, TorchDlrmOptions
from backends.torch_dlrm.probes import GPU_MARGIN, TOLERANCE, Probe, difference, doubt, make_probes
from backends.torch_dlrm.program_file import is_compiled
from backends.torch_dlrm.recognise import NotRecognisedError
from backends.torch_dlrm.torchscript import libraries_line
from backends.torch_dlrm.weights import Dlrm
from backends.torchscript_file.errors import NoTorchScriptError, TorchScriptFileError
from scheduler.errors import LoadError
from scheduler.types import Array

_cpu: Any = torch.cpu
# A probe's bags have up to 40 ids, which makes larger sums, and errors, than requests have.
_ROUNDED_TOLERANCE = 0.1
_log = logging.getLogger(__name__)
_COMPILED = (
    "{} is an AOTInductor package: machine code that would run in this process and holds Python's "
    f"lock while it does. If you trust it, --plan {ARTIFACT} serves it, on one lane"
)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What computes a model: ``name`` is LEAN or ARTIFACT, ``reason`` why it is not LEAN.

    The lean plan of a GPU is proven with all that serves it; others are modules, to be served.
    ``dense`` is what the dense layers compute in.
    """

    name: str
    reason: str
    compute: Module | Serving
    derived: Derived
    dense: str = FP32


def choose(options: TorchDlrmOptions, artifact: Artifact, device: torch.device, lanes: int) -> Plan:
    """Load ``artifact`` by the plan that ``options`` want and the facts allow. Raises LoadError."""
    plan = _choose(options, artifact, device, lanes)
    artifact.check_unchanged()
    return plan


def _choose(
    options: TorchDlrmOptions, artifact: Artifact, device: torch.device, lanes: int
) -> Plan:
    try:
        return _lean(options, artifact, device, lanes)
    except NoTorchScriptError:
        raise
    except (NotRecognisedError, NoAnswerError, TorchScriptFileError) as error:
        reason = str(error)
    if options.plan == LEAN:
        raise LoadError(f"--plan {LEAN}: {reason}")
    if options.dense != FP32:
        raise LoadError(f"--dense {options.dense} needs the lean plan: {reason}")
    if is_compiled(artifact.model_file) and options.plan != ARTIFACT:
        raise LoadError(_COMPILED.format(artifact.model_file))
    module, derived = load_model(artifact.model_file, device)
    if options.plan == AUTO:
        _log.warning("%s: no lean plan, served as it is: %s", artifact.model_file, reason)
    return Plan(ARTIFACT, reason, module, derived)


def _lean(options: TorchDlrmOptions, artifact: Artifact, device: torch.device, lanes: int) -> Plan:
    """Return the lean plan. Raises why not, or LoadError for weights that nobody should serve."""
    # The manifest's hash has vouched for every byte; a bare file has only its own checksums.
    dlrm = read_weights(artifact.model_file, verify=artifact.manifest is None)
    if options.plan == ARTIFACT:
        raise NotRecognisedError("not wanted")
    probes = make_probes(dlrm)
    answers = _answers(artifact, probes)
    derived = Derived(
        answers.feature_names, tuple(dlrm.tables.rows.tolist()), dlrm.dense_features, answers.device
    )
    if device.type == "cpu":
        lean = Lean(dlrm, answers.output, copy=options.tables == COPY)
        _prove(lean, dlrm, probes, answers)
        if options.dense != FP32:
            lean.round_layers(dlrm, options.dense)
            _check_rounded(lean, probes, answers, options.dense)
        return Plan(LEAN, "", lean, derived, options.dense)
    if options.dense != FP32:
        raise LoadError(f"--dense {options.dense} is for the CPU, not for --device {device}")
    # Other kernels add up in another order.
    wider = [replace(probe, tolerance=GPU_MARGIN * probe.tolerance) for probe in probes]
    proof = partial(doubt, dlrm, probes=wider, theirs=answers.scores)
    serving = lean_on_gpu(options, dlrm, answers.output, lanes, proof, Gpu(device))
    return Plan(LEAN, "", serving, derived)


def _answers(artifact: Artifact, probes: list[Probe]) -> Answers:
    """Return the artifact's own answers: those recorded beside it, or fresh ones."""
    recorded = read_answers(artifact.model_file.with_name(ANSWERS_FILE))
    if recorded is not None and recorded.fits(artifact.sha256, probes, libraries_line()):
        return recorded
    answers = ask(Path(artifact.model_file))
    if not answers.fits(artifact.sha256, probes, libraries_line()):
        raise NoAnswerError("the file changed while it was being checked")
    return answers


def _check_rounded(lean: Lean, probes: list[Probe], answers: Answers, dense: str) -> None:
    """Refuse layers whose rounding changes what the model says. Raises LoadError."""
    if not _cpu.get_capabilities().get("amx_bf16"):
        _log.warning("--dense %s: this CPU has no AMX, on which alone it is known to pay", dense)
    for probe, expected in zip(probes, answers.scores, strict=True):
        gap = difference(_scores(lean, answers.output, probe.inputs), expected)
        if probe.tolerance == TOLERANCE and not gap <= _ROUNDED_TOLERANCE:
            raise LoadError(
                f"--dense {dense}: {len(expected)} probe rows differ by {gap:.3g} from FP32, more "
                f"than {_ROUNDED_TOLERANCE:g}: this model needs --dense {FP32}"
            )


def _scores(lean: Lean, output: str, inputs: dict[str, Array]) -> Array:
    # One thread, as it serves: where others are busy, teams of threads took twenty times as long.
    return Cpu(lean, threads=1).run(inputs)[output]


def _prove(lean: Lean, dlrm: Dlrm, probes: list[Probe], answers: Answers) -> None:
    """Raise NotRecognisedError unless ``lean`` answers the probes as the artifact does."""
    forward = partial(_scores, lean, answers.output)
    why = doubt(dlrm, forward, probes, answers.scores)
    if why:
        raise NotRecognisedError(f"not proven to score as the artifact does: {why}")
