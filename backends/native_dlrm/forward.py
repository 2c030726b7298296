"""One forward of a DLRM in buffers of its own: BLAS for the layers, kernels for the rest."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from backends.dlrm.forward.layout import table_layout
from backends.dlrm.forward.model import Dlrm, Floats, Linear
from backends.dlrm.gather import DENSE, DENSE_ROWS, IDS
from backends.native_dlrm import kernels
from backends.native_dlrm.one_row import OneRow, pack
from scheduler.types import Array

# Enough rows for BLAS to be at its best; their activations stay in the second-level cache.
_BLOCK_ROWS = 256


class Weights:
    """What every lane reads: the dense weights, (inputs, outputs), and where the tables lie."""

    def __init__(self, dlrm: Dlrm) -> None:
        """Copy the dense weights into BLAS's order; the tables stay where they are."""
        self.dlrm = dlrm
        self.dense = [_transposed(layer) for layer in dlrm.dense]
        self.over = [_transposed(layer) for layer in dlrm.over]
        self.layout = table_layout(dlrm)
        self.packed = pack(dlrm)


class Forward:
    """One lane: scores one batch at a time, on the calling thread."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        dlrm = weights.dlrm
        widths = [len(layer.bias) for layer in (*dlrm.dense, *dlrm.over)]
        width = max(*widths, dlrm.interaction_width)
        # Each layer reads one buffer and writes the other.
        self._buffers = [np.empty(_BLOCK_ROWS * width, np.float32) for _ in range(2)]
        self._vectors = np.empty((len(dlrm.tables) + 1, dlrm.dim), np.float32)
        self._one_row = OneRow(weights.packed, dlrm) if weights.packed else None

    def run(self, inputs: Mapping[str, Array]) -> Floats:
        """Return the scores of a gathered batch, (rows,), in memory of their own."""
        dense, dense_rows = inputs[DENSE], inputs.get(DENSE_ROWS)
        if dense_rows is None:
            dense_rows = np.arange(len(dense), dtype=np.int32)
        lengths, ids = inputs[f"{IDS}.lengths"], inputs[f"{IDS}.values"]
        rows = len(dense_rows)
        ends = np.cumsum(lengths, dtype=np.int64).reshape(len(self._weights.dlrm.tables), rows)
        if rows == 1 and self._one_row:
            memory = self._weights.layout, self._vectors
            return np.asarray([self._one_row.run(dense, ids, ends, memory)], np.float32)
        scores = np.empty(rows, np.float32)
        # NaN and infinity are a client's to send: they stay in their row, and are no warning.
        with np.errstate(all="ignore"):
            for start in range(0, rows, _BLOCK_ROWS):
                own = dense_rows[start : start + _BLOCK_ROWS]
                joined = self._join(dense, own, ids, ends, start)
                self._score(joined, scores[start : start + len(own)])
        return scores

    def _join(
        self, dense: Array, rows: Array, ids: Array, ends: npt.NDArray[np.int64], start: int
    ) -> Floats:
        """Return what the over layers read of the block whose dense rows are ``rows``."""
        weights, dlrm = self._weights, self._weights.dlrm
        hidden, free = dense[rows[0] : rows[-1] + 1], 0
        for layer in weights.dense:
            hidden, free = self._layer(hidden, layer, free), 1 - free
        joined = self._buffer(free, len(rows), dlrm.interaction_width)
        kernels.interact(
            dlrm.storage, weights.layout, ids, ends, start, hidden, rows - rows[0], self._vectors,
            joined,
        )  # fmt: skip
        return joined

    def _score(self, joined: Floats, scores: Floats) -> None:
        weights, dlrm = self._weights, self._weights.dlrm
        # The buffer that ``joined`` is not in.
        hidden, free = joined, 1 - len(weights.dense) % 2
        for layer in weights.over:
            hidden, free = self._layer(hidden, layer, free), 1 - free
        if dlrm.sigmoid:
            kernels.sigmoid(hidden, scores)
        else:
            scores[:] = hidden[:, 0]

    def _layer(self, values: Array, layer: Linear, free: int) -> Floats:
        out = self._buffer(free, len(values), len(layer.bias))
        np.matmul(values, layer.weight, out=out)
        (kernels.bias_relu if layer.relu else kernels.add_bias)(out, layer.bias)
        return out

    def _buffer(self, index: int, rows: int, columns: int) -> Floats:
        return self._buffers[index][: rows * columns].reshape(rows, columns)


def _transposed(layer: Linear) -> Linear:
    weight, bias = np.ascontiguousarray(layer.weight.T), np.ascontiguousarray(layer.bias)
    return Linear(weight, bias, layer.relu)
