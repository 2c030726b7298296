"""A model served by shards: ids go out to where their rows are, pooled vectors come back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from backends.dlrm.gather import DENSE
from backends.dlrm.turnstile import Turnstile
from backends.ids.rules import IdRules
from backends.jagged import JaggedLayout, coalesce
from backends.ray_pool.fanout import Fanout
from backends.ray_pool.pool import Call, Pool
from backends.ray_pool.sharded.dense import DenseLane
from backends.ray_pool.sharded.join import Placement, join
from backends.ray_pool.sharded.plan import Plan
from backends.ray_pool.sharded.routes import Names
from backends.ray_pool.sharded.split import Floats, PieceIds, split
from backends.ray_pool.sharded.updates import SharedOut
from scheduler.backend import Checked, Compute, TableSpec
from scheduler.types import Array, Batch, InferRequest, ModelSpec

# A result that is larger Ray puts into shared memory, and moves from there to another machine in
# some 10 ms; smaller ones come with the answer, up to 10 MB in all.
_CHUNK_BYTES = 90_000
_MOST_CHUNKS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Where rows of ``tables`` are: by ``plan``, each part behind one of ``pools``.

    Bags of ``means`` are averaged, once they are added up. An update may take ``patience_s``.
    """

    layout: JaggedLayout
    tables: tuple[TableSpec, ...]
    names: Names
    plan: Plan
    placement: Placement
    dim: int
    means: Sequence[int]
    pools: Sequence[Pool]
    patience_s: float


class Sharded:
    """Answer batches with ``parts`` for the tables, and ``lanes`` for the dense part."""

    def __init__(
        self, spec: ModelSpec, rules: IdRules, parts: Parts, lanes: Sequence[DenseLane]
    ) -> None:
        self.spec = spec
        self.lanes = len(lanes)
        self._rules = rules
        self._parts = parts
        self._lanes = Turnstile(lanes)
        fanouts = [Fanout(pool, (), parts.patience_s, alone=False) for pool in parts.pools]
        self.tables = SharedOut(parts.tables, parts.names, parts.plan, fanouts, self._lanes)

    def check(self, request: InferRequest) -> Checked | None:
        """Make rows of ids; refuse what a lookup would misread. Raises ServingError."""
        return self._rules.check(request)

    def checker(self) -> Callable[[InferRequest], Checked | None]:
        """Return what ``check`` does, as something that can be pickled."""
        return self._rules.check

    def lanes_for(self, waiting_rows: int) -> int:
        """Return how many batches may be under way: as many as ever, for each shard takes each."""
        for pool in self._parts.pools:
            pool.lanes_for(waiting_rows)
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
        home, lane = self._lanes.take()  # before the parts are asked: who holds the lanes has all
        try:
            pooled = self._pooled(parts)
            rows = lane.pooled[: len(dense)]
            join(self._parts.placement, pooled, rows)
            for table in self._parts.means:
                counts = np.maximum(lengths[table], 1, dtype=np.float32)
                rows[:, self._parts.placement.slots[table]] /= counts[:, None]
            scores = lane.run(dense)
        finally:
            home.put(lane)
        return {self.spec.outputs[0].name: scores}

    def _pooled(self, parts: Sequence[PieceIds]) -> list[list[Floats]]:
        """Ask every part at once, and wait for all: one round trip."""
        calls: list[Call] = []
        try:
            for pool, part in zip(self._parts.pools, parts, strict=True):
                # One by one: those begun are dropped if another cannot be.
                calls.append(pool.begin(partial(_ask, part, self._parts.dim)))
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
