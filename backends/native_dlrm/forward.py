"""One forward of a DLRM by Numba, in buffers of its own: one call a batch, without the GIL."""

from collections.abc import Mapping

import numpy as np

from backends.dlrm.forward.layout import table_layout
from backends.dlrm.forward.model import Dlrm, Floats
from backends.dlrm.forward.panels import aligned, rounded
from backends.dlrm.gather import DENSE, DENSE_ROWS, IDS
from backends.native_dlrm.layers import BLOCK_ROWS, score
from backends.native_dlrm.packed import PackedLayers
from backends.native_dlrm.tile import COLUMNS
from scheduler.types import Array

_LENGTHS, _VALUES = f"{IDS}.lengths", f"{IDS}.values"


class Weights:
    """What every lane reads: the dense weights as tiles read them, and where the tables lie."""

    def __init__(self, dlrm: Dlrm) -> None:
        """Copy the dense weights; the tables stay where they are."""
        self.dlrm = dlrm
        self.layout = table_layout(dlrm)
        self.packed = PackedLayers((*dlrm.dense, *dlrm.over[:-1]))
        last = dlrm.over[-1]
        self.last = np.ascontiguousarray(last.weight[0])
        self.last_bias, self.last_relu = last.bias[0], last.relu


class Forward:
    """One lane: scores one batch at a time, on the calling thread."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        dlrm = weights.dlrm
        widths = [len(layer.bias) for layer in (*dlrm.dense, *dlrm.over)]
        width = rounded(max(*widths, dlrm.interaction_width), COLUMNS)
        # Each layer reads one buffer and writes the other.
        self._left = aligned((BLOCK_ROWS, width), np.float32)
        self._right = aligned((BLOCK_ROWS, width), np.float32)
        self._vectors = aligned((len(dlrm.tables) + 1, dlrm.dim), np.float32)
        self._ends = np.empty(BLOCK_ROWS * len(dlrm.tables), np.int64)

    def run(self, inputs: Mapping[str, Array]) -> Floats:
        """Return the scores of a gathered batch, (rows,), in memory of their own."""
        dense, rows_of_dense = inputs[DENSE], inputs.get(DENSE_ROWS)
        if rows_of_dense is None:
            rows_of_dense = np.arange(len(dense), dtype=np.int32)
        lengths = np.ascontiguousarray(inputs[_LENGTHS], np.int32)
        if lengths.size > self._ends.size:
            self._ends = np.empty(lengths.size, np.int64)
        weights, dlrm = self._weights, self._weights.dlrm
        scores = np.empty(len(rows_of_dense), np.float32)
        score(
            dlrm.storage, weights.layout, inputs[_VALUES], lengths,
            np.ascontiguousarray(dense, np.float32), rows_of_dense, weights.packed.table,
            len(dlrm.dense), weights.last, weights.last_bias, weights.last_relu, dlrm.sigmoid,
            self._ends, self._vectors, self._left, self._right, scores,
        )  # fmt: skip
        return scores
