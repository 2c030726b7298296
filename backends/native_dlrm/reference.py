"""A DLRM's scores in float64 by NumPy alone: slow, plain, and what a kernel has to agree with."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from backends.dlrm.forward.model import QUANTISED, SCALE_BIAS_BYTES, Dlrm, Linear, Table, row_bytes
from backends.dlrm.gather import DENSE, IDS
from scheduler.types import Array

Wide = npt.NDArray[np.float64]


class Reference:
    """Score batches; the dense weights are rounded to FP16 first if ``half``."""

    def __init__(self, dlrm: Dlrm, *, half: bool = False) -> None:
        """Take the weights: dense layers as copies, tables as they lie."""
        self._dlrm = dlrm
        self._dense = [_wide(layer, half=half) for layer in dlrm.dense]
        # The last layer, of one output, is never rounded.
        self._over = [*(_wide(layer, half=half) for layer in dlrm.over[:-1])]
        self._over.append(_wide(dlrm.over[-1], half=False))

    def run(self, inputs: Mapping[str, Array]) -> Wide:
        """Return the scores of a gathered batch, (rows,)."""
        dlrm = self._dlrm
        hidden = _layers(np.asarray(inputs[DENSE], np.float64), self._dense)
        vectors = self.vectors(hidden, inputs[f"{IDS}.lengths"], inputs[f"{IDS}.values"])
        products = vectors @ vectors.transpose(0, 2, 1)
        left, right = np.triu_indices(vectors.shape[1], 1)
        joined = np.concatenate([hidden, products[:, left, right]], axis=1)
        logits = _layers(joined, self._over)[:, 0]
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-logits)) if dlrm.sigmoid else logits

    def vectors(self, hidden: Wide, lengths: Array, ids: Array) -> Wide:
        """Return the dense vector and every pooled one, (rows, features + 1, dim)."""
        dlrm, rows = self._dlrm, len(hidden)
        bags = lengths.reshape(len(dlrm.tables), rows)
        ends = np.cumsum(bags.sum(axis=1))
        vectors = np.zeros((rows, len(dlrm.tables) + 1, dlrm.dim))
        vectors[:, 0] = hidden
        for place, number in enumerate(dlrm.interacted, 1):
            table, counts = dlrm.tables[number], bags[number]
            looked_up = _stored(table, ids[ends[number] - counts.sum() : ends[number]])
            np.add.at(vectors[:, place], np.repeat(np.arange(rows), counts), looked_up)
            if table.mean:
                vectors[:, place] /= np.maximum(counts, 1)[:, None]
        return vectors


def _stored(table: Table, ids: Array) -> Wide:
    """Return what the stored rows ``ids`` mean, (ids, dim)."""
    data = np.ascontiguousarray(table.data[ids, : row_bytes(table.kind, table.dim)])
    if table.kind not in QUANTISED:
        return data.view(np.float16 if table.kind == "fp16" else np.float32).astype(np.float64)
    codes = data[:, SCALE_BIAS_BYTES:]
    if table.kind == "int4":
        codes = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(ids), 2 * codes.shape[1])
        codes = codes[:, : table.dim]
    halves = np.ascontiguousarray(data[:, :SCALE_BIAS_BYTES]).view(np.float16)
    scale_bias = halves.astype(np.float64)
    meant: Wide = codes * scale_bias[:, :1] + scale_bias[:, 1:]
    return meant


def _wide(layer: Linear, *, half: bool) -> tuple[Wide, Wide, bool]:
    weight = layer.weight.astype(np.float16) if half else layer.weight
    return weight.T.astype(np.float64), layer.bias.astype(np.float64), layer.relu


def _layers(values: Wide, layers: Sequence[tuple[Wide, Wide, bool]]) -> Wide:
    for weight, bias, relu in layers:
        values = values @ weight + bias
        if relu:
            values = np.maximum(values, 0)
    return values
