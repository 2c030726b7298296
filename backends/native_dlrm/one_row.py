"""A forward of one row: all of it in one compiled call, the weights in three bytes each.

At one row BLAS has nothing to reuse, each of its calls costs as much as a small layer, and reading
the weights is the work: see ``backends/dlrm/forward/triples.py``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dlrm.forward.model import Dlrm, Linear
from backends.dlrm.forward.triples import steps_of_24_bits
from backends.native_dlrm.jit import kernel
from backends.native_dlrm.kernels import Array, Index, pairs, pool
from scheduler.types import Array as AnyArray

Wide = npt.NDArray[np.float64]

# Inputs are padded to four times as many as one turn of the vectorised loop takes, few to fewer.
_PADDING, _LEAST_PADDING = 128, 32
# A number's place value among the 32 bits it is part of.
_UNPACKED = 256
FIRST, INPUTS, PADDED, OUTPUTS, RELU, SCALE = range(6)


class OneRow:
    """The layers of a model, and one lane's memory to compute them in."""

    def __init__(self, packed: "PackedLayers", dlrm: Dlrm) -> None:
        self._packed, self._dlrm = packed, dlrm
        width = int(packed.layers[:, [PADDED, OUTPUTS]].max())
        self._left, self._right = (np.zeros((1, width), np.float32) for _ in range(2))

    def run(self, dense: AnyArray, ids: AnyArray, ends: AnyArray, memory: Sequence[Any]) -> float:
        """Return the score of a batch of one row; ``memory`` is (table layout, vectors)."""
        packed, dlrm = self._packed, self._dlrm
        layout, vectors = memory
        score: float = score_one(
            dlrm.storage, layout, ids, ends, dense, packed.numbers, packed.scale_bias,
            packed.layers, len(dlrm.dense), vectors, self._left, self._right, dlrm.sigmoid,
        )  # fmt: skip
        return score


class PackedLayers:
    """The weights of all layers, an output's one after another: three int32 for each four.

    ``layers`` has a row of FIRST, ... for each, ``scale_bias`` two floats an output.
    """

    def __init__(self, layers: Sequence[tuple[Linear, Wide]]) -> None:
        numbers, scale_bias, rows, first, place = [], [], [], 0, 0
        for layer, step in layers:
            outputs, inputs = layer.weight.shape
            padded = _padded(inputs)
            wide = np.pad(layer.weight / step[:, None], ((0, 0), (0, padded - inputs)))
            numbers.append(_woven(wide).reshape(-1))
            scale = (step / _UNPACKED).astype(np.float32)
            scale_bias.append(np.stack([scale, layer.bias], axis=1))
            rows.append((first, inputs, padded, outputs, layer.relu, place))
            first, place = first + numbers[-1].size, place + outputs
        self.numbers = np.concatenate(numbers)
        self.scale_bias = np.concatenate(scale_bias)
        self.layers = np.asarray(rows, np.int64)


def pack(dlrm: Dlrm) -> PackedLayers | None:
    """Return the layers of ``dlrm``, or None if one of them needs all bits of a float."""
    packed = []
    for layer in (*dlrm.dense, *dlrm.over):
        steps = steps_of_24_bits(layer.weight.T[None])
        if steps is None:
            return None
        packed.append((layer, steps[0]))
    return PackedLayers(packed)


def _padded(inputs: int) -> int:
    multiple = _PADDING if inputs > _PADDING // 2 else _LEAST_PADDING
    return -(-inputs // multiple) * multiple


def _woven(wide: Wide) -> npt.NDArray[np.int32]:
    """Return whole numbers of 24 bits, (outputs, inputs) of ``wide`` rounded, in three quarters.

    The upper bytes of each quarter are its own inputs' numbers, the lowest ones together those of
    the last quarter's: what they add to a number is taken off when it is rounded.
    """
    one, two, three, last = np.split(wide, 4, axis=1)
    code = np.rint(last).astype(np.int64)
    quarters = []
    for number, part in enumerate((one, two, three)):
        lowest = code >> (8 * number) & 255
        quarters.append(np.rint(part - lowest / _UNPACKED).astype(np.int64) * _UNPACKED + lowest)
    return np.concatenate(quarters, axis=1).astype(np.int32)


@kernel
def layer_of_one(
    numbers: Array, scale_bias: Array, layers: Array, number: Index, values: Array, out: Array
) -> None:
    """Write what layer ``number`` makes of the first row of ``values`` into that of ``out``."""
    first, place = np.uint64(layers[number, FIRST]), np.uint64(layers[number, SCALE])
    quarter, zero = np.uint64(layers[number, PADDED] // 4), np.uint64(0)
    half = quarter + quarter
    for column in range(layers[number, INPUTS], layers[number, PADDED]):
        values[0, column] = 0
    for output in range(np.uint64(layers[number, OUTPUTS])):
        start = first + output * (half + quarter)
        total = np.float32(0)
        for column in range(quarter):
            one, two = numbers[start + column], numbers[start + quarter + column]
            three = numbers[start + half + column]
            low = np.int32((one & 255) << 8) | np.int32((two & 255) << 16) | np.int32(three << 24)
            total += values[zero, column] * np.float32(one)
            total += values[zero, quarter + column] * np.float32(two)
            total += values[zero, half + column] * np.float32(three)
            total += values[zero, half + quarter + column] * np.float32(np.int32(low))
        total = total * scale_bias[place + output, 0] + scale_bias[place + output, 1]
        # In this order NaN stays NaN.
        out[zero, output] = np.float32(0) if layers[number, RELU] and total < 0 else total


@kernel
def score_one(  # noqa: PLR0913, PLR0917  # every array is unpacked once a call: no bundles
    storage: Array, layout: Array, ids: Array, ends: Array, dense: Array, numbers: Array,
    scale_bias: Array, layers: Array, dense_layers: Index, vectors: Array, left: Array,
    right: Array, sigmoid: Index,
) -> Any:  # fmt: skip
    """Return the score of the one row of ``dense``; the last three arrays are scratch."""
    dim = vectors.shape[1]
    for column in range(dense.shape[1]):
        left[0, column] = dense[0, column]
    values, free = left, right
    for number in range(dense_layers):
        layer_of_one(numbers, scale_bias, layers, number, values, free)
        values, free = free, values
    for column in range(dim):
        vectors[0, column] = values[0, column]
    pool(storage, layout, ids, ends, 0, vectors)
    pairs(vectors, values, 0)
    for number in range(dense_layers, len(layers)):
        layer_of_one(numbers, scale_bias, layers, number, values, free)
        values, free = free, values
    logit = values[0, 0]
    return np.float32(1) / (np.float32(1) + np.exp(-logit)) if sigmoid else logit
