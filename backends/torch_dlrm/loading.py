"""Load a TorchRec DLRM and warm it up. Imports PyTorch, so it is imported on load only."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from backends.compiled.rows import find_rows_kernel, settled_ids
from backends.cpus import usable_cpus
from backends.dlrm.artifact import Artifact, find_artifact
from backends.dlrm.gather import Staging
from backends.dlrm.live import LiveTables
from backends.dlrm.manifest import MANIFEST_FILE
from backends.ids.declared import declared, make_rules
from backends.ids.rules import IdRules
from backends.torch_dlrm.artifact import Derived, Facts, settle
from backends.torch_dlrm.device import Cpu, Gather, Module, RunGathered, Serving, parse_device
from backends.torch_dlrm.fused import Fused
from backends.torch_dlrm.gpu.hardware import Gpu
from backends.torch_dlrm.gpu.load import artifact_on_gpu
from backends.torch_dlrm.gpu.packing import Form
from backends.torch_dlrm.lean import Lean
from backends.torch_dlrm.lean_lane import LeanLane
from backends.torch_dlrm.live import NoTables, live_tables
from backends.torch_dlrm.options import LEAN, TorchDlrmOptions
from backends.torch_dlrm.plan import Plan, choose
from backends.torch_dlrm.program_file import is_compiled
from backends.torch_dlrm.runtime import Runtime
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
    artifact = find_artifact(options.path)
    device = parse_device(options.device)
    lanes, threads = _parallelism(options, device, locks=is_compiled(artifact.model_file))
    plan = choose(options, artifact, device, lanes)
    facts = settle(options, artifact, plan.derived)
    rules = _rules(options, artifact, facts)
    serving = _serving(plan, facts, options, device, (lanes, threads))
    runtime = Runtime(serving, options.outputs)
    outputs = probe(runtime, facts)
    warm_up(runtime, facts, serving.most_rows)
    parallelism = {"lanes": str(lanes), "threads_per_forward": str(threads)}
    properties = properties_of(artifact, facts, plan) | {"device": str(device)} | parallelism
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
    device: torch.device,
    parallelism: tuple[int, int],
) -> Serving:
    """Return what serves ``plan`` on ``device``, with lanes and threads a forward."""
    if isinstance(plan.compute, Serving):
        return plan.compute
    _check_device(device, plan.derived)
    (lanes, threads), rows = parallelism, options.max_batch_rows
    if device.type != "cpu" and not isinstance(plan.compute, Fused):
        form = Form(facts.layout, facts.dense_features)
        return artifact_on_gpu(plan.compute, form, lanes, rows, Gpu(device))

    def make_gather() -> Gather:
        staging = Staging(facts.layout, facts.dense_features, rows, np.empty)
        if isinstance(plan.compute, Fused):
            return staging.gather_patterns
        return staging.gather_distinct if plan.name == LEAN else staging.gather

    if isinstance(plan.compute, Fused):
        said = {"instructions": plan.compute.instructions, "threads_per_forward": "1"}
        made = [plan.compute.make_lane() for _ in range(lanes)]
        return Serving(made, make_gather, rows, said)
    return Serving([_lane(plan.compute, threads) for _ in range(lanes)], make_gather, rows, {})


def _lane(module: Module, threads: int) -> RunGathered:
    lane = LeanLane(module, threads) if isinstance(module, Lean) else Cpu(module, threads)
    return lane.run


def _parallelism(
    options: TorchDlrmOptions, device: torch.device, *, locks: bool
) -> tuple[int, int]:
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
    lanes = options.lanes or (cpus if device.type == "cpu" else 1)
    return lanes, options.intra_op_threads or max(1, cpus // lanes)


def _check_device(device: torch.device, derived: Derived) -> None:
    """Refuse another device than the exported one: tracing wrote it into the graph."""
    exported = torch.device(derived.device) if derived.device else device
    if (exported.type, exported.index or 0) != (device.type, device.index or 0):
        raise LoadError(
            f"--device {device}: the model file was exported for {exported} and runs only there; "
            f"export it with --device {device}"
        )
