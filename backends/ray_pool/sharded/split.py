"""A batch's ids, shared out to where their rows are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backends.jagged import Ids
from backends.ray_pool.sharded.plan import Piece, Plan

Floats = npt.NDArray[np.float32]
Lengths = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class PieceIds:
    """What one part looks up: ``lengths`` (pieces, rows) and ``ids``, counted from each piece."""

    lengths: Lengths
    ids: Ids


def split(plan: Plan, table_rows: Sequence[int], lengths: Lengths, ids: Ids) -> list[PieceIds]:
    """Return what each part of ``plan`` looks up of ``lengths`` (features, rows) and ``ids``."""
    ends = np.cumsum(np.add.reduce(lengths, axis=1, dtype=np.int64)).tolist()
    starts = [0, *ends[:-1]]

    def cut(piece: Piece) -> tuple[Lengths, Ids]:
        own, table = ids[starts[piece.table] : ends[piece.table]], piece.table
        if piece.rows == table_rows[table]:
            return lengths[table], own
        local = own - own.dtype.type(piece.first)
        here = (local >= 0) & (local < piece.rows)
        bags = np.repeat(np.arange(lengths.shape[1]), lengths[table])[here]
        counts = np.bincount(bags, minlength=lengths.shape[1])
        return counts.astype(np.int32), local[here]

    found = []
    for pieces in plan:
        cuts = [cut(piece) for piece in pieces]
        found.append(
            PieceIds(
                np.stack([each for each, _ in cuts]), np.concatenate([each for _, each in cuts])
            )
            if cuts
            else PieceIds(np.empty((0, lengths.shape[1]), np.int32), ids[:0])
        )
    return found
