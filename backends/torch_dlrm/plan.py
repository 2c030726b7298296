"""Choose how a model is computed: fused or lean where that is proven right, else as it came.

What needs PyTorch is imported where it is needed: to serve a fused plan that is not.
"""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from backends.compiled.build import NoKernelError
from backends.dlrm.artifact import Artifact
from backends.dlrm.forward.compiler import load_library
from backends.dlrm.manifest import check_tables
from backends.torch_dlrm.answers import ANSWERS_FILE, Answers, NoAnswerError, ask, read_answers
from backends.torch_dlrm.artifact import Derived
from backends.torch_dlrm.formats import read_weights
from backends.torch_dlrm.fused import Fused
from backends.torch_dlrm.libraries import imported, libraries_line
from backends.torch_dlrm.options import ARTIFACT, AUTO, COPY, FP32, FUSED, LEAN, TorchDlrmOptions
from backends.torch_dlrm.probes import Probe, doubt, make_probes, wider
from backends.torch_dlrm.program_file import is_compiled
from backends.torch_dlrm.proof import prove
from backends.torch_dlrm.recognise import NotRecognisedError
from backends.torch_dlrm.serving import CPU, Serving
from backends.torch_dlrm.weights import Dlrm, held
from backends.torchscript_file.errors import (
    DamagedFileError,
    NoTorchScriptError,
    TorchScriptFileError,
)
from scheduler.errors import LoadError

if TYPE_CHECKING:
    from backends.torch_dlrm.device import Module

_log = logging.getLogger(__name__)
_COMPILED = (
    "{} is an AOTInductor package: machine code that would run in this process and holds Python's "
    f"lock while it does. If you trust it, --plan {ARTIFACT} serves it, on one lane"
)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What computes a model: FUSED, LEAN or ARTIFACT; ``reason`` is why it is no better one.

    The lean plan of a GPU is proven with all that serves it; others are still to be served.
    ``dense`` is what the dense layers compute in.
    """

    name: str
    reason: str
    compute: "Module | Fused | Serving"
    derived: Derived
    dense: str = FP32


def choose(options: TorchDlrmOptions, artifact: Artifact, device: str, lanes: int) -> Plan:
    """Load ``artifact`` by the plan that ``options`` want and the facts allow. Raises LoadError."""
    plan = _choose(options, artifact, device, lanes)
    artifact.check_unchanged()
    return plan


def _choose(options: TorchDlrmOptions, artifact: Artifact, device: str, lanes: int) -> Plan:
    try:
        return _lean(options, artifact, device, lanes)
    except (NoTorchScriptError, DamagedFileError):  # PyTorch compares no checksums
        raise
    except (NotRecognisedError, NoAnswerError, TorchScriptFileError) as error:
        reason = str(error)
    if options.plan in {FUSED, LEAN}:
        raise LoadError(f"--plan {options.plan}: {reason}")
    if options.dense != FP32:
        raise LoadError(f"--dense {options.dense} needs the lean plan: {reason}")
    if is_compiled(artifact.model_file) and options.plan != ARTIFACT:
        raise LoadError(_COMPILED.format(artifact.model_file))
    with imported():
        from backends.torch_dlrm.with_torch import as_it_came  # noqa: PLC0415

    module, derived = as_it_came(artifact.model_file, device)
    if options.plan == AUTO:
        _log.warning("%s: no lean plan, served as it is: %s", artifact.model_file, reason)
    return Plan(ARTIFACT, reason, module, derived)


def _lean(options: TorchDlrmOptions, artifact: Artifact, device: str, lanes: int) -> Plan:
    """Return a fused or lean plan. Raises why not, or LoadError for what nobody should serve."""
    # The manifest's hash has vouched for every byte; a bare file has only its own checksums.
    dlrm = read_weights(artifact.model_file, verify=artifact.manifest is None)
    if artifact.manifest is not None:
        shapes = [(dlrm.tables.dim, dlrm.tables.averages)] * dlrm.tables.features
        check_tables(artifact.model_file.parent, artifact.manifest.tables, shapes)
    if options.plan == ARTIFACT:
        raise NotRecognisedError("asked for: --plan artifact")
    probes = make_probes(dlrm)
    answers = _answers(artifact, probes)
    derived = Derived(
        answers.feature_names, tuple(dlrm.tables.rows.tolist()), dlrm.dense_features, answers.device
    )
    if device == CPU:
        return _on_cpu(options, held(dlrm, copy=options.tables == COPY), probes, answers, derived)
    if options.plan == FUSED:
        raise LoadError(f"--plan {FUSED} is for the CPU, not for --device {device}")
    if options.dense != FP32:
        raise LoadError(f"--dense {options.dense} is for the CPU, not for --device {device}")
    proof = partial(doubt, dlrm, probes=wider(probes), theirs=answers.scores)
    with imported():
        from backends.torch_dlrm.with_torch import lean_on  # noqa: PLC0415

    serving = lean_on(device, options, dlrm, answers.output, lanes, proof)
    return Plan(LEAN, "", serving, derived)


def _on_cpu(
    options: TorchDlrmOptions, dlrm: Dlrm, probes: list[Probe], answers: Answers, derived: Derived
) -> Plan:
    reason = "" if options.plan == LEAN else _unfit(options)
    if options.plan != LEAN and not reason:
        try:
            fused = Fused(dlrm, answers.output, load_library(Path(options.cache_dir)))
            prove(fused.make_lane(), dlrm, wider(probes), answers)
            return Plan(FUSED, "", fused, derived)
        except (NoKernelError, NotRecognisedError) as error:
            reason = str(error)
    if options.plan == FUSED:
        raise LoadError(f"--plan {FUSED}: {reason}")
    with imported():
        from backends.torch_dlrm.with_torch import lean_on_cpu  # noqa: PLC0415

    lean = lean_on_cpu(options.dense, dlrm, probes, answers)
    if reason and options.dense == FP32:
        _log.warning("no fused plan, the lean one computes: %s", reason)
    return Plan(LEAN, reason, lean, derived, options.dense)


def _unfit(options: TorchDlrmOptions) -> str:
    """Return which option only the lean plan can follow, or ""."""
    if options.dense != FP32:
        return f"--dense {options.dense}: the C kernel computes in {FP32}"
    if options.intra_op_threads > 1:
        return f"--intra-op-threads {options.intra_op_threads}: the C kernel computes on one thread"
    return ""


def _answers(artifact: Artifact, probes: list[Probe]) -> Answers:
    """Return the artifact's own answers: those recorded beside it, or fresh ones."""
    recorded = read_answers(artifact.model_file.with_name(ANSWERS_FILE))
    if recorded is not None and recorded.fits(artifact.sha256, probes, libraries_line()):
        return recorded
    answers = ask(Path(artifact.model_file))
    if not answers.fits(artifact.sha256, probes, libraries_line()):
        raise NoAnswerError("the file changed while it was being checked")
    return answers
