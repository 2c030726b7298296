"""Load a TorchRec DLRM, warm it up, run it. Imports PyTorch, so it is imported on load only."""

import logging
import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from backends.cpus import usable_cpus
from backends.dlrm.artifact import Artifact, find_artifact
from backends.dlrm.gather import DENSE, Staging
from backends.dlrm.live import LiveTables
from backends.dlrm.manifest import MANIFEST_FILE
from backends.dlrm.turnstile import Turnstile
from backends.ids.declared import declared, make_rules
from backends.ids.rules import IdRules
from backends.torch_dlrm.artifact import Derived, Facts, settle
from backends.torch_dlrm.device import Cpu, Gather, RunGathered, Serving, parse_device
from backends.torch_dlrm.gpu.hardware import Gpu
from backends.torch_dlrm.gpu.load import artifact_on_gpu
from backends.torch_dlrm.gpu.packing import Form
from backends.torch_dlrm.live import NoTables, live_tables
from backends.torch_dlrm.options import LEAN, TorchDlrmOptions
from backends.torch_dlrm.plan import Plan, choose
from backends.torch_dlrm.program_file import is_compiled
from backends.torch_dlrm.torchscript import libraries
from scheduler.backend import Compute
from scheduler.errors import LoadError, ServingError
from scheduler.types import Array, Batch, InferRequest, ModelSpec, TensorSpec

_log = logging.getLogger(__name__)


class Runtime:
    """Run what serves a model, on as many of its lanes at once as it has.

    Host buffers are reused: one set for each batch that computes, and one for each that is
    gathered meanwhile.
    """

    def __init__(self, serving: Serving, outputs: tuple[str, ...]) -> None:
        self._outputs = outputs
        self._make_gather = serving.make_gather
        self.lanes: Turnstile[RunGathered] = Turnstile(serving.lanes)
        self._gathers: queue.SimpleQueue[Gather] = queue.SimpleQueue()
        self._gathers.put(self._make_gather())
        for _ in serving.lanes:
            self._gathers.put(self._make_gather())

    def prepare(self, batch: Batch) -> Compute:
        """Gather ``batch``; return what computes the wanted outputs, in memory of their own.

        A result that is never called gives its buffers to the garbage collector; others are made.
        """
        try:
            gather = self._gathers.get_nowait()
        except queue.Empty:
            gather = self._make_gather()
        try:
            return partial(self._compute, gather, gather(batch))
        except ServingError:  # too large just now, and its buffers are as good as before
            self._gathers.put(gather)
            raise

    def _compute(self, gather: Gather, gathered: Any) -> dict[str, Array]:
        home, lane = self.lanes.take()
        try:
            outputs = lane(gathered)
        finally:
            home.put(lane)
            self._gathers.put(gather)
        return {name: _by_row(outputs[name]) for name in self._outputs or outputs}


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
    outputs = _probe(runtime, facts)
    _warm_up(runtime, facts, serving.most_rows)
    parallelism = {"lanes": str(lanes), "threads_per_forward": str(threads)}
    properties = _properties(artifact, facts, plan) | {"device": str(device)} | parallelism
    properties |= {**serving.properties, "ids": rules.text}
    spec = replace(
        _spec(facts, outputs, serving.most_rows, properties),
        id_policies=rules.policies,
        vocabularies=rules.vocabularies,
    )
    tables = live_tables(plan, facts.layout, runtime.lanes.held)
    return Loaded(runtime, facts, rules, spec, lanes, tables)


def _rules(options: TorchDlrmOptions, artifact: Artifact, facts: Facts) -> IdRules:
    tables = artifact.manifest.tables if artifact.manifest else ()
    said = declared(artifact.model_file.with_name(MANIFEST_FILE), tables)
    return make_rules(facts.layout, said, options.ids)


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
    if device.type != "cpu":
        form = Form(facts.layout, facts.dense_features)
        return artifact_on_gpu(plan.compute, form, lanes, rows, Gpu(device))

    def make_gather() -> Gather:
        staging = Staging(facts.layout, facts.dense_features, rows, np.empty)
        return staging.gather_distinct if plan.name == LEAN else staging.gather

    return Serving([Cpu(plan.compute, threads).run] * lanes, make_gather, rows, {})


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


def _by_row(scores: Array) -> Array:
    """Turn (rows, 1) into (rows,): one score a row, whichever way it was packaged."""
    return scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores


def _probe(runtime: Runtime, facts: Facts) -> tuple[TensorSpec, ...]:
    """Run two rows to learn the outputs. Raises LoadError if that is not possible."""
    try:
        outputs = runtime.prepare(_zeros(facts, 2))()
    except KeyError as error:
        raise LoadError(f"--outputs: the model has no output {error}") from error
    except (RuntimeError, AttributeError, TypeError) as error:
        raise LoadError(f"the model file does not run as a TorchRec DLRM: {error}") from error
    for name, scores in outputs.items():
        if not scores.ndim or len(scores) != 2:
            raise LoadError(f"output {name!r} of the model has shape {scores.shape} for 2 rows")
    return tuple(
        TensorSpec(name, scores.dtype, ("rows", *scores.shape[1:]))
        for name, scores in outputs.items()
    )


def _warm_up(runtime: Runtime, facts: Facts, max_batch_rows: int) -> None:
    """Run every power of two up to the limit, and the limit, twice."""
    start = time.perf_counter()
    for rows in _buckets(max_batch_rows):
        # Twice: TorchScript profiles its first run and optimises in its second.
        for _ in range(2):
            runtime.prepare(_zeros(facts, rows))()
    _log.info("warmed up %s in %.2f s", facts.name, time.perf_counter() - start)


def _buckets(max_batch_rows: int) -> Iterator[int]:
    rows = 1
    while rows < max_batch_rows:
        yield rows
        rows *= 2
    yield max_batch_rows


def _zeros(facts: Facts, rows: int) -> Batch:
    features = len(facts.layout.features)
    inputs: dict[str, Array] = {
        DENSE: np.zeros((rows, facts.dense_features), np.float32),
        facts.layout.lengths: np.ones((features, rows), np.int64),
        facts.layout.values: np.zeros(features * rows, np.int64),
    }
    return Batch((InferRequest(facts.name, rows, inputs),))


def _spec(
    facts: Facts, outputs: tuple[TensorSpec, ...], rows: int, properties: dict[str, str]
) -> ModelSpec:
    layout, ids = facts.layout, np.dtype(np.int64)
    features = len(layout.features)
    dense = TensorSpec(
        DENSE, np.dtype(np.float32), ("rows", facts.dense_features), facts.dense_names
    )
    return ModelSpec(
        name=facts.name,
        version=facts.version,
        inputs=(
            dense,
            TensorSpec(layout.lengths, ids, (features, "rows"), layout.features),
            TensorSpec(layout.values, ids, ("*",), lengths=layout.lengths),
        ),
        outputs=outputs,
        max_batch_rows=rows,
        properties=properties,
    )


def _properties(artifact: Artifact, facts: Facts, plan: Plan) -> dict[str, str]:
    reason = {"plan_reason": plan.reason} if plan.reason else {}
    return {
        "plan": plan.name,
        "dense": plan.dense,
        **reason,
        "table_rows": " ".join(str(rows) for rows in facts.layout.table_rows),
        "sha256": artifact.sha256,
        "weights": artifact.manifest.weights if artifact.manifest else "unknown",
        **libraries(),
    }
