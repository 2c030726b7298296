"""A model served by shards: ids go out to where their rows are, pooled vectors come back."""

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from backends.cpus import usable_cpus
from backends.dlrm.gather import DENSE
from backends.ids.declared import make_rules
from backends.ids.rules import IdRules
from backends.jagged import JaggedLayout, coalesce
from backends.native_dlrm.check import check_shapes
from backends.native_dlrm.model import row_bytes
from backends.native_dlrm.options import NativeDlrmOptions
from backends.native_dlrm.runtime import layout_of, ones, spec_of
from backends.native_dlrm.source import Source, find_source
from backends.ray_pool.cluster import Room, join, placer
from backends.ray_pool.inner import make_inner
from backends.ray_pool.options import RayPoolOptions
from backends.ray_pool.pool import Pool, Times
from backends.ray_pool.replicated import bounds_of
from backends.ray_pool.sharded.dense import DenseLane, make_lane
from backends.ray_pool.sharded.plan import Plan, TableSize, make_plan
from backends.ray_pool.sharded.shard import Part, Shard, identity_of
from backends.ray_pool.sharded.split import Floats, PieceIds, split
from backends.ray_pool.sharded.split import join as put_together
from scheduler.backend import Checked, Compute
from scheduler.errors import LoadError
from scheduler.types import Array, Batch, InferRequest, ModelSpec

_THREADS = 4
# A result that is larger Ray puts into shared memory, and moves from there to another machine in
# some 10 ms; smaller ones come with the answer, up to 10 MB in all.
_CHUNK_BYTES = 90_000
_MOST_CHUNKS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Where rows are: by ``plan``, each part behind one of ``pools``.

    Bags of ``means`` are averaged, once they are added up.
    """

    layout: JaggedLayout
    plan: Plan
    dim: int
    means: Sequence[int]
    pools: Sequence[Pool]


class Sharded:
    """Answer batches with ``parts`` for the tables, and ``lanes`` for the dense part."""

    def __init__(
        self, spec: ModelSpec, rules: IdRules, parts: Parts, lanes: Sequence[DenseLane]
    ) -> None:
        self.spec = spec
        self.lanes = len(lanes)
        self._rules = rules
        self._parts = parts
        self._lanes: queue.SimpleQueue[DenseLane] = queue.SimpleQueue()
        for lane in lanes:
            self._lanes.put(lane)

    def check(self, request: InferRequest) -> Checked | None:
        """Make rows of ids; refuse what a lookup would misread. Raises ServingError."""
        return self._rules.check(request)

    def lanes_for(self, waiting_rows: int) -> int:
        """Return how many batches may be under way: as many as ever."""
        del waiting_rows
        return self.lanes

    def prepare(self, batch: Batch) -> Compute:
        """Coalesce ``batch`` and share its ids out; return what asks and scores."""
        layout = self._parts.layout
        dense = np.concatenate(
            [request.inputs[DENSE] for request in batch.requests], dtype=np.float32
        )
        lengths = np.empty((len(layout.features), batch.rows), np.int32)
        count = sum(request.inputs[layout.values].size for request in batch.requests)
        ids = np.empty(count, layout.values_dtype)
        coalesce(layout, batch.requests, lengths, ids)
        parts = split(self._parts.plan, layout.table_rows.tolist(), lengths, ids)
        return partial(self._compute, dense, lengths, parts)

    def _compute(
        self, dense: Array, lengths: Array, parts: Sequence[PieceIds]
    ) -> Mapping[str, Array]:
        pooled = self._pooled(parts)
        lane = self._lanes.get()
        try:
            rows = lane.pooled[:, : len(dense)]
            put_together(self._parts.plan, pooled, rows)
            for table in self._parts.means:
                rows[table] /= np.maximum(lengths[table], 1, dtype=np.float32)[:, None]
            scores = lane.run(dense)
        finally:
            self._lanes.put(lane)
        return {self.spec.outputs[0].name: scores}

    def _pooled(self, parts: Sequence[PieceIds]) -> list[list[Floats]]:
        """Ask every part at once, and wait for all: one round trip."""
        calls = [
            pool.begin(partial(_ask, part, self._parts.dim))
            for pool, part in zip(self._parts.pools, parts, strict=True)
        ]
        try:
            return [call.result() for call in calls]
        finally:
            for call in calls:
                call.drop()

    def processes(self) -> dict[int, str]:
        """Return the process of each shard that is up, with its node."""
        found = [pool.processes() for pool in self._parts.pools]
        return {pid: node for each in found for pid, node in each.items()}

    def close(self) -> None:
        """End the shards."""
        for pool in self._parts.pools:
            pool.close()


def _ask(part: PieceIds, dim: int, handle: Any) -> Any:
    """Let the shard behind ``handle`` pool; return what the chunks of its answer come with."""
    pieces, rows = part.lengths.shape
    chunks = max(1, min(rows, -(-4 * pieces * rows * dim // _CHUNK_BYTES)))
    chunks = chunks if chunks <= _MOST_CHUNKS else 1
    answer = handle.pool_in.options(num_returns=chunks).remote(chunks, part)
    return answer if chunks > 1 else [answer]


def load(options: RayPoolOptions) -> Sharded:
    """Plan, place the shards and wait until they have mapped their pieces. Raises LoadError."""
    native: NativeDlrmOptions = make_inner(options).options
    if not isinstance(native, NativeDlrmOptions):
        raise LoadError(f"--shard {options.shard} is for --inner native_dlrm, not {options.inner}")
    source = find_source(native.path, verify=native.verify)
    check_shapes(source.dlrm)
    layout = layout_of(source)
    rules = make_rules(layout, source.ids, native.ids)
    plan = _plan(source, options)
    lanes = [make_lane(source.dlrm, native) for _ in range(usable_cpus() + options.ahead)]
    properties = {
        "lanes": str(len(lanes)),
        **lanes[0][1].properties,
        "ids": rules.text,
        "shards": " ".join(str(len(pieces)) for pieces in plan),
    }
    spec = replace(
        spec_of(native, source, layout, properties),
        id_policies=rules.policies,
        vocabularies=rules.vocabularies,
    )
    pools = _start(options, native, plan)
    means = [number for number, table in enumerate(source.dlrm.tables) if table.mean]
    dense = [lane for lane, _ in lanes]
    sharded = Sharded(spec, rules, Parts(layout, plan, source.dlrm.dim, means, pools), dense)
    for rows in {1, spec.max_batch_rows}:
        sharded.prepare(ones(spec, rows))()
    return sharded


def _plan(source: Source, options: RayPoolOptions) -> Plan:
    sizes = [
        TableSize(len(table.data), row_bytes(table.kind, table.dim)) for table in source.dlrm.tables
    ]
    # A part without anything would only be asked for nothing.
    return tuple(pieces for pieces in make_plan(sizes, options.shards, options.plan) if pieces)


def _start(options: RayPoolOptions, native: NativeDlrmOptions, plan: Plan) -> list[Pool]:
    """Place every part, each with as many replicas as the options say. Raises LoadError."""
    join(options.address)
    place = placer(Shard, Room(options.cpus, 0.0, _THREADS))
    times = Times(options.call_timeout_s, options.patience_s, options.load_timeout_s)
    bounds = bounds_of(options, native.max_batch_rows)
    bounds = replace(bounds, most=bounds.least)
    # As a shard sees it, which never reads the file whole.
    identity = identity_of(find_source(native.path, verify=False))
    pools = []
    for number, pieces in enumerate(plan):
        part = Part(native, identity, pieces)
        pools.append(Pool(f"shard {number}", _placing(place, part), bounds, times, options.ahead))
    try:
        for pool in pools:
            pool.place()
        for pool in pools:
            pool.start()
    except BaseException:
        for pool in pools:
            pool.close()
        raise
    return pools


def _placing(place: Callable[[Part], object], part: Part) -> Callable[[], object]:
    return lambda: place(part)
