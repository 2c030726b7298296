"""Load a TorchRec DLRM and warm it up; PyTorch is imported where a plan needs it."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from backends.compiled.rows import find_rows_kernel, settled_ids
from backends.cpus import usable_cpus
from backends.dlrm.artifact import Artifact, find_artifact
from backends.dlrm.gather import Staging
from backends.dlrm.live import LiveTables
from backends.dlrm.manifest import MANIFEST_FILE
from backends.ids.declared import declared, make_rules
from backends.ids.rules import IdRules
from backends.torch_dlrm.artifact import Derived, Facts, settle
from backends.torch_dlrm.fused import Fused
from backends.torch_dlrm.libraries import imported
from backends.torch_dlrm.live import NoTables, live_tables
from backends.torch_dlrm.options import TorchDlrmOptions
from backends.torch_dlrm.plan import Plan, choose
from backends.torch_dlrm.program_file import is_compiled
from backends.torch_dlrm.runtime import Runtime
from backends.torch_dlrm.serving import CPU, Gather, Serving
from backends.torch_dlrm.told import properties_of, spec_of
from backends.torch_dlrm.trial import probe, warm_up
from scheduler.errors import LoadError
from scheduler.types import ModelSpec


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to serve."""

    runtime: Runtime
    facts: Facts
    rules: IdRules
    spec: ModelSpec
    lanes: int
    tables: LiveTables | NoTables


def load(options: TorchDlrmOptions) -> Loaded:
    """Load, check and warm up the model of ``options``. Raises LoadError."""
    device = device_of(options.device)
    artifact = find_artifact(options.path)
    lanes, threads = _parallelism(options, device, locks=is_compiled(artifact.model_file))
    plan = choose(options, artifact, device, lanes)
    facts = settle(options, artifact, plan.derived)
    rules = _rules(options, artifact, facts)
    serving = _serving(plan, facts, options, device, (lanes, threads))
    runtime = Runtime(serving, options.outputs)
    outputs = probe(runtime, facts)
    warm_up(runtime, facts, serving)
    parallelism = {"lanes": str(lanes), "threads_per_forward": str(threads)}
    properties = properties_of(artifact, facts, plan) | {"device": device} | parallelism
    properties |= {**serving.properties, "ids": rules.text}
    spec = replace(
        spec_of(facts, outputs, serving.most_rows, properties),
        id_policies=rules.policies,
        vocabularies=rules.vocabularies,
    )
    find_faster = partial(find_rows_kernel, Path(options.cache_dir))
    tables = live_tables(plan, facts.layout, runtime.lanes, find_faster)
    return Loaded(runtime, facts, rules, spec, lanes, tables)


def _rules(options: TorchDlrmOptions, artifact: Artifact, facts: Facts) -> IdRules:
    tables = artifact.manifest.tables if artifact.manifest else ()
    said = declared(artifact.model_file.with_name(MANIFEST_FILE), tables)
    make_faster = partial(settled_ids, Path(options.cache_dir))
    return make_rules(facts.layout, said, options.ids, make_faster)


def _serving(
    plan: Plan,
    facts: Facts,
    options: TorchDlrmOptions,
    device: str,
    parallelism: tuple[int, int],
) -> Serving:
    """Return what serves ``plan`` on ``device``, with lanes and threads a forward."""
    if isinstance(plan.compute, Serving):
        return plan.compute
    _check_device(device, plan.derived)
    if isinstance(plan.compute, Fused):
        return _fused(plan.compute, facts, parallelism[0], options.max_batch_rows)
    with imported():
        from backends.torch_dlrm.with_torch import serving_of  # noqa: PLC0415

    return serving_of(plan.compute, facts, options, device, parallelism)


def _fused(fused: Fused, facts: Facts, lanes: int, rows: int) -> Serving:
    def make_gather() -> Gather:
        return Staging(facts.layout, facts.dense_features, rows, np.empty).gather_patterns

    said = {"instructions": fused.instructions, "threads_per_forward": "1"}
    return Serving([fused.make_lane() for _ in range(lanes)], make_gather, rows, said)


def _parallelism(options: TorchDlrmOptions, device: str, *, locks: bool) -> tuple[int, int]:
    """Return lanes and threads per forward: whole forwards side by side beat split ones.

    ``locks`` says that a forward holds Python's lock. Raises LoadError for lanes that would wait.
    """
    cpus = usable_cpus()
    if locks:
        if options.lanes > 1:
            raise LoadError(
                f"--lanes {options.lanes}: an AOTInductor package holds Python's lock while it "
                "runs, so a second lane computes nothing more; give --lanes 1"
            )
        return 1, options.intra_op_threads or 1
    lanes = options.lanes or (cpus if device == CPU else 1)
    return lanes, options.intra_op_threads or max(1, cpus // lanes)


def _check_device(device: str, derived: Derived) -> None:
    """Refuse another device than the exported one: tracing wrote it into the graph."""
    exported = derived.device or device
    if _settled(exported) != _settled(device):
        raise LoadError(
            f"--device {device}: the model file was exported for {exported} and runs only there; "
            f"export it with --device {device}"
        )


def _settled(device: str) -> tuple[str, str]:
    kind, _, index = device.partition(":")
    return kind, index or "0"


def device_of(text: str) -> str:
    """Return the device called ``text``, CPU or cuda:N. Raises LoadError if it is not here."""
    if text == CPU:
        return CPU
    with imported():
        from backends.torch_dlrm.device import parse_device  # noqa: PLC0415

    return str(parse_device(text))
