"""A whole forward as one compiled function: layers on packed weights, lookup and interaction."""

from typing import Any

import numpy as np

from backends.dlrm.forward.triples import MOST_OF_ALL_INPUTS
from backends.native_dlrm.jit import kernel
from backends.native_dlrm.kernels import Array, Index, fetch_ahead, pairs, pool
from backends.native_dlrm.tile import COLUMNS, FEW_ROWS, TILE_ROWS, strip

WEIGHT, PACKED, SCALE, BIAS, INPUTS, OUTPUTS, RELU, FIELDS = range(8)
# A block's activations stay in the second-level cache while the weights pass by.
BLOCK_ROWS = 112
_FLOAT_BYTES, _PACKED_BYTES = 4, 3


@kernel
def are_small(values: Array, first: Index, rows: Index, inputs: Index) -> Any:
    """Return whether a float holds sums of whole numbers of ``rows`` rows; NaN is no matter."""
    most, large = np.float32(MOST_OF_ALL_INPUTS / inputs), 0
    for row in range(np.uint64(first), np.uint64(first + rows)):
        for column in range(np.uint64(inputs)):
            large |= abs(values[row, column]) > most
    return not large


@kernel
def apply(
    layers: Array, number: Index, values: Array, first: Index, rows: Index, out: Array
) -> None:
    """Write what layer ``number`` makes of rows ``first``, ... of ``values`` into ``out``'s first.

    In strips of nearly equal heights; a row of ``out`` is COLUMNS floats longer than need be.
    """
    inputs = layers[number, INPUTS]
    packed = layers[number, PACKED] != 0 and rows <= FEW_ROWS
    packed = packed and are_small(values, first, rows, inputs)
    panel = layers[number, PACKED] if packed else layers[number, WEIGHT]
    panel_bytes = inputs * COLUMNS * (_PACKED_BYTES if packed else _FLOAT_BYTES)
    step, out_step = values.strides[0], out.strides[0]
    source, place = values.ctypes.data + first * step, out.ctypes.data
    scale, bias = layers[number, SCALE], layers[number, BIAS]
    strips = (rows + TILE_ROWS - 1) // TILE_ROWS
    for _ in range(0, layers[number, OUTPUTS], COLUMNS):
        for part in range(strips):
            start, end = rows * part // strips, rows * (part + 1) // strips
            strip(
                end - start, int(packed), source + start * step, step, panel, inputs, scale, bias,
                layers[number, RELU], place + start * out_step, out_step,
            )  # fmt: skip
        panel += panel_bytes
        scale += COLUMNS * _FLOAT_BYTES
        bias += COLUMNS * _FLOAT_BYTES
        place += COLUMNS * _FLOAT_BYTES


@kernel
def last(values: Array, row: Index, weight: Array, bias: Index, relu: Index) -> Any:
    """Return the one output of the last layer for row ``row`` of ``values``."""
    total, place = np.float32(0), np.uint64(row)
    for column in range(np.uint64(len(weight))):
        total += values[place, column] * weight[column]
    total += bias
    # In this order NaN stays NaN.
    return np.float32(0) if relu and total < 0 else total


@kernel
def sum_up(lengths: Array, ends: Array) -> None:
    """Write where each bag's ids end into ``ends``, (features, rows), as ``lengths`` flat says."""
    total, rows = np.int64(0), ends.shape[1]
    for feature in range(ends.shape[0]):
        for row in range(rows):
            total += lengths[feature * rows + row]
            ends[feature, row] = total


@kernel
def join(  # noqa: PLR0913, PLR0917  # every array is unpacked once a call: no bundles
    storage: Array, layout: Array, ids: Array, ends: Array, dense_rows: Array, start: Index,
    end: Index, values: Array, vectors: Array, out: Array,
) -> None:  # fmt: skip
    """Look up, pool and interact batch rows ``start`` to ``end``: one a row of ``out``.

    The first row of ``values`` is the dense vector of row ``start``.
    """
    dim = np.uint64(vectors.shape[1])
    for row in range(start, end):
        if row + 1 < end:
            fetch_ahead(storage, layout, ids, ends, row + 1)
        own, place = np.uint64(dense_rows[row] - dense_rows[start]), np.uint64(row - start)
        for column in range(dim):
            out[place, column] = vectors[np.uint64(0), column] = values[own, column]
        pool(storage, layout, ids, ends, row, vectors)
        pairs(vectors, out, place)


@kernel
def finish(  # noqa: PLR0913, PLR0917  # every array is unpacked once a call: no bundles
    values: Array, weight: Array, bias: Index, relu: Index, sigmoid: Index, scores: Array,
    start: Index, end: Index,
) -> None:  # fmt: skip
    """Write the scores of batch rows ``start`` to ``end``, the first rows of ``values``."""
    for row in range(start, end):
        logit = last(values, row - start, weight, bias, relu)
        if sigmoid:
            logit = np.float32(1) / (np.float32(1) + np.exp(-logit))
        scores[row] = logit


@kernel
def score(  # noqa: PLR0913, PLR0917  # every array is unpacked once a call: no bundles
    storage: Array, layout: Array, ids: Array, lengths: Array, dense: Array, dense_rows: Array,
    layers: Array, dense_layers: Index, last_weight: Array, last_bias: Index, last_relu: Index,
    sigmoid: Index, ends: Array, vectors: Array, left: Array, right: Array, scores: Array,
) -> None:  # fmt: skip
    """Write the scores of a batch; the four arrays before them are scratch.

    ``dense_rows`` (rows,) says which row of ``dense`` each row's is, never less than the one
    before. ``ends`` has at least as many numbers as ``lengths``; ``left`` and ``right`` are
    (BLOCK_ROWS, width).
    """
    rows = len(scores)
    ends = ends[: len(lengths)].reshape(len(layout), rows)
    sum_up(lengths, ends)
    blocks = (rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    for block in range(blocks):
        start, end = rows * block // blocks, rows * (block + 1) // blocks
        fetch_ahead(storage, layout, ids, ends, start)
        first, count = dense_rows[start], dense_rows[end - 1] - dense_rows[start] + 1
        apply(layers, 0, dense, first, count, left)
        values, free = left, right
        for number in range(1, dense_layers):
            apply(layers, number, values, 0, count, free)
            values, free = free, values
        join(storage, layout, ids, ends, dense_rows, start, end, values, vectors, free)
        values, free = free, values
        for number in range(dense_layers, len(layers)):
            apply(layers, number, values, 0, end - start, free)
            values, free = free, values
        finish(values, last_weight, last_bias, last_relu, sigmoid, scores, start, end)
