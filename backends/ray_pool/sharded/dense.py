"""The dense part of a DLRM: pooled vectors in, scores out, by the kernels that have tables too."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from backends.dlrm.forward.model import Dlrm, Table
from backends.dlrm.gather import DENSE, IDS
from backends.native_dlrm.choice import Choice, choose
from backends.native_dlrm.options import NativeDlrmOptions
from backends.ray_pool.sharded.split import Floats
from scheduler.types import Array


@dataclass(frozen=True, slots=True, eq=False)
class DenseLane:
    """One lane: ``pooled`` (most rows, features, dim) is to be filled, ``run`` reads it."""

    pooled: Floats
    score: Callable[[dict[str, Array]], Floats]

    def run(self, dense: Array) -> Floats:
        """Return the scores of as many rows as ``dense`` has."""
        features, rows = self.pooled.shape[1], len(dense)
        return self.score(
            {
                DENSE: dense,
                f"{IDS}.lengths": np.ones(features * rows, np.int32),
                f"{IDS}.values": np.tile(np.arange(rows, dtype=np.int32), features),
            }
        )


def make_lane(
    dlrm: Dlrm, slots: Sequence[int], options: NativeDlrmOptions
) -> tuple[DenseLane, Choice]:
    """Return a lane and what computes it; ``slots`` has the place of each table's vector.

    To the kernel the pooled vectors are tables of FP32 rows: batch row r looks up row r of each.
    """
    shape = options.max_batch_rows, len(dlrm.tables), dlrm.dim
    # Not zeros: the kernel is tried on it. Of length 1, so that products need few digits.
    pooled = np.random.default_rng(1).standard_normal(shape, np.float32)
    pooled *= np.float32(dlrm.dim**-0.5)
    storage = pooled.reshape(-1).view(np.uint8)
    rows = storage.reshape(shape[0], shape[1], -1)
    tables = tuple(
        Table(table.feature, "fp32", dlrm.dim, rows[:, slot])
        for table, slot in zip(dlrm.tables, slots, strict=True)
    )
    choice = choose(dataclasses.replace(dlrm, tables=tables, storage=storage), options)
    return DenseLane(pooled, choice.make_lane().run), choice
