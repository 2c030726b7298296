"""Shards in this process, without a cluster: every kind of row, bags that are averaged, chunks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from backends.dlrm.forward.model import KINDS, Dlrm
from backends.dlrm.gather import DENSE, IDS
from backends.native_dlrm.converted import ConvertedManifest, TableEntry, write_converted
from backends.native_dlrm.options import NativeDlrmOptions
from backends.native_dlrm.source import find_source
from backends.ray_pool.options import RayPoolOptions
from backends.ray_pool.sharded.plan import Plan
from scheduler.types import Array, Batch, InferRequest
from tests.fixtures.random_dlrm import Shape, make_dlrm, make_inputs

pytest.importorskip("ray", reason="needs this project's extra 'ray'")

from backends.ray_pool.pool import Pool
from backends.ray_pool.sharded.load import assemble
from backends.ray_pool.sharded.shard import Part, Shard, identity_of

# Compiling takes half a minute where nothing is cached.
pytestmark = pytest.mark.slow

ROWS = 77


@dataclass
class LocalPool:
    """A pool of one shard in this process, which answers at once as an actor would."""

    shard: Shard
    heard: list[str]
    chunks: int = 0

    def begin(self, send: Any) -> "LocalPool":
        """Let ``send`` ask."""
        self.heard.append("asked")
        self._answer = send(self)
        return self

    def result(self) -> Any:
        """Return what ``ray.get`` would."""
        self.heard.append("awaited")
        return self._answer

    def drop(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    @property
    def pool_in(self) -> "LocalPool":
        """Stand for the actor's method."""
        return self

    def options(self, num_returns: int) -> "LocalPool":
        """Remember how many results were wanted."""
        self.chunks = num_returns
        return self

    def remote(self, chunks: int, part: Any) -> Any:
        """Call the method."""
        return self.shard.pool_in(chunks, part)


def write(folder: Path, dlrm: Dlrm) -> None:
    """Write ``dlrm`` as narsil convert does."""
    tables = tuple(
        TableEntry(each.feature, len(each.data), each.dim, each.kind, each.mean)
        for each in dlrm.tables
    )
    manifest = ConvertedManifest(
        name="random", version="1", tables=tables, interacted=dlrm.interacted, dense_names=(),
        dense_relu=tuple(layer.relu for layer in dlrm.dense),
        over_relu=tuple(layer.relu for layer in dlrm.over),
        sigmoid=dlrm.sigmoid, output=dlrm.output, weights="random", sha256="",
    )  # fmt: skip
    write_converted(folder, manifest, dlrm)


@pytest.mark.parametrize("plan", ["auto", "table_wise", "row_wise"])
@pytest.mark.parametrize("mean", [False, True])
def test_scores_are_those_of_the_whole_model_in_float64(
    tmp_path: Path, kernel_cache: Path, plan: str, mean: bool
) -> None:
    shape = Shape(kinds=(*KINDS, *KINDS), dim=64, mean=mean)
    random = make_dlrm(shape)
    write(tmp_path, random.dlrm)
    native = NativeDlrmOptions(str(tmp_path), max_batch_rows=128, cache_dir=str(kernel_cache))
    source = find_source(native.path, verify=True)
    pools: list[LocalPool] = []
    heard: list[str] = []

    def start(plan: Plan) -> list[Pool]:
        parts = [Part(native, identity_of(source), pieces) for pieces in plan]
        pools.extend(LocalPool(Shard(part), heard) for part in parts)
        return cast("list[Pool]", pools)

    sharded = assemble(RayPoolOptions(plan=plan, shards=3), native, source, start)
    inputs = make_inputs(shape, ROWS)
    asked: dict[str, Array] = dict(inputs)
    asked[f"{IDS}.lengths"] = inputs[f"{IDS}.lengths"].reshape(len(shape.kinds), ROWS)
    heard.clear()
    scores = sharded.prepare(Batch((InferRequest("", ROWS, asked),)))()["default"]
    assert heard == ["asked"] * len(pools) + ["awaited"] * len(pools)  # one round trip
    expected = random.expected(inputs)
    assert expected.std() > 0.05
    assert np.abs(np.subtract(scores, expected, dtype=np.float64)).max() <= 2e-6
    assert asked[DENSE].shape == (ROWS, 4)
    if plan == "row_wise":
        assert all(pool.chunks > 1 for pool in pools)  # 8 pieces, 64 wide: more than one result
