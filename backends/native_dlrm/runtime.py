"""Load a DLRM, warm it up, run it."""

import logging
import queue
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from threadpoolctl import ThreadpoolController

from backends.compiled.rows import find_rows_kernel, settled_ids
from backends.cpus import usable_cpus
from backends.dlrm.forward.model import Dlrm
from backends.dlrm.gather import DENSE, IDS, Staging
from backends.dlrm.live import LiveTable, LiveTables
from backends.dlrm.turnstile import Turnstile
from backends.ids.declared import make_rules
from backends.ids.rules import IdRules
from backends.jagged import JaggedLayout
from backends.native_dlrm.check import check_rows, check_shapes
from backends.native_dlrm.choice import Choice, choose
from backends.native_dlrm.options import COPY, NativeDlrmOptions
from backends.native_dlrm.source import Source, find_source
from scheduler.backend import Compute, TableSpec
from scheduler.types import Array, Batch, InferRequest, ModelSpec, TensorSpec

_log = logging.getLogger(__name__)


class Runtime:
    """Run one model on as many lanes as there are ``lanes``; host buffers are reused."""

    def __init__(
        self, dlrm: Dlrm, choice: Choice, layout: JaggedLayout, lanes: int, rows: int
    ) -> None:
        self._output = dlrm.output
        self._gather = choice.gather
        self._make_staging = partial(Staging, layout, dlrm.dense_features, rows, np.empty)
        self.lanes = Turnstile([choice.make_lane() for _ in range(lanes)])
        self._stagings: queue.SimpleQueue[Staging] = queue.SimpleQueue()
        # One more than lanes: the next batch is gathered while every lane computes.
        self._stagings.put(self._make_staging())
        for _ in range(lanes):
            self._stagings.put(self._make_staging())

    def prepare(self, batch: Batch) -> Compute:
        """Gather ``batch``; return what computes its scores, in memory of their own."""
        try:
            staging = self._stagings.get_nowait()
        except queue.Empty:
            staging = self._make_staging()
        return partial(self._compute, staging, self._gather(staging, batch))

    def _compute(self, staging: Staging, inputs: Mapping[str, Array]) -> dict[str, Array]:
        home, lane = self.lanes.take()
        try:
            scores = lane.run(inputs)
        finally:
            home.put(lane)
            self._stagings.put(staging)
        return {self._output: scores}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to serve."""

    runtime: Runtime
    layout: JaggedLayout
    rules: IdRules
    spec: ModelSpec
    lanes: int
    tables: LiveTables


def load(options: NativeDlrmOptions) -> Loaded:
    """Load, check and warm up the model of ``options``. Raises LoadError."""
    source = find_source(options.path, verify=options.verify, copy=options.tables == COPY)
    check_shapes(source.dlrm)
    if options.verify:
        check_rows(source.dlrm)
    # A kernel's proof multiplies by BLAS, beside models that serve. The setting is the process's.
    ThreadpoolController().limit(limits=1, user_api="blas")
    lanes = options.lanes or usable_cpus()
    layout, cache = layout_of(source), Path(options.cache_dir)
    rules = make_rules(layout, source.ids, options.ids, partial(settled_ids, cache))
    choice = choose(source.dlrm, options)
    runtime = Runtime(source.dlrm, choice, layout, lanes, options.max_batch_rows)
    properties = {
        "lanes": str(lanes),
        "tables": options.tables,
        **choice.properties,
        "ids": rules.text,
    }
    spec = replace(
        spec_of(options, source, layout, properties),
        id_policies=rules.policies,
        vocabularies=rules.vocabularies,
    )
    _warm_up(runtime, spec)
    tables = LiveTables(_live(source.dlrm), runtime.lanes, partial(find_rows_kernel, cache))
    return Loaded(runtime, layout, rules, spec, lanes, tables)


def _live(dlrm: Dlrm) -> list[LiveTable]:
    return [
        LiveTable(
            TableSpec(table.feature, len(table.data), table.dim, table.kind), dlrm.writable(table)
        )
        for table in dlrm.tables
    ]


def layout_of(source: Source) -> JaggedLayout:
    """Return the names and sizes of a model's tables, in wire order."""
    tables = source.dlrm.tables
    rows = np.asarray([len(table.data) for table in tables], np.int64)
    return JaggedLayout(IDS, tuple(table.feature for table in tables), rows)


def spec_of(
    options: NativeDlrmOptions,
    source: Source,
    layout: JaggedLayout,
    properties: Mapping[str, str],
) -> ModelSpec:
    """Return what the model of ``source`` takes and gives, and ``properties`` of how."""
    ids, floats = np.dtype(np.int64), np.dtype(np.float32)
    dense = source.dlrm.dense_features
    names = source.dense_names if len(source.dense_names) == dense else ()
    lengths = (len(layout.features), "rows")
    return ModelSpec(
        name=options.name or source.name,
        version=options.version or source.version,
        inputs=(
            TensorSpec(DENSE, floats, ("rows", dense), names),
            TensorSpec(layout.lengths, ids, lengths, layout.features),  # type: ignore[arg-type]
            TensorSpec(layout.values, ids, ("*",), lengths=layout.lengths),
        ),
        outputs=(TensorSpec(source.dlrm.output, floats, ("rows",)),),
        max_batch_rows=options.max_batch_rows,
        properties={
            "device": "cpu",
            **properties,
            "threads_per_forward": "1",
            "table_rows": " ".join(str(rows) for rows in layout.table_rows),
            "sha256": source.sha256,
            "weights": source.weights,
            "numpy": np.__version__,
        },
    )


def _warm_up(runtime: Runtime, spec: ModelSpec) -> None:
    """Compile every kernel, or read it from disk, and touch every buffer."""
    start = time.perf_counter()
    for rows in _buckets(spec.max_batch_rows):
        runtime.prepare(ones(spec, rows))()
    _log.info(
        "%s computes by the %s kernel %s; warmed up in %.2f s", spec.name, spec.properties["plan"],
        spec.properties.get("instructions", ""), time.perf_counter() - start,
    )  # fmt: skip


def _buckets(most: int) -> Iterator[int]:
    yield from {1, min(16, most), most}


def ones(spec: ModelSpec, rows: int) -> Batch:
    """Return a batch of ``rows`` rows to warm up with: the first row of each table, once."""
    dense, lengths, values = spec.inputs
    features = len(lengths.labels)
    inputs: dict[str, Array] = {
        dense.name: np.zeros((rows, int(dense.shape[1])), np.float32),
        lengths.name: np.ones((features, rows), np.int64),
        values.name: np.zeros(features * rows, np.int64),
    }
    return Batch((InferRequest(spec.name, rows, inputs),))
