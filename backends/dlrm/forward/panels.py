"""Weights as tiles read them: panels of as many outputs as are computed side by side."""

from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dlrm.forward.model import Floats, Linear

_LINE_BYTES = 64


def in_panels(layer: Linear, columns: int) -> Floats:
    """Return the weight of ``layer``, (panels, inputs, ``columns``), the last one filled with 0."""
    outputs, inputs = layer.weight.shape
    padded = np.zeros((rounded(outputs, columns), inputs), np.float32)
    padded[:outputs] = layer.weight
    return padded.reshape(-1, columns, inputs).transpose(0, 2, 1)


def padded_bias(layer: Linear, columns: int) -> Floats:
    """Return the bias of ``layer``, with zeros for the outputs that only panels have."""
    bias = np.zeros(rounded(len(layer.bias), columns), np.float32)
    bias[: len(layer.bias)] = layer.bias
    return bias


def rounded(number: int, multiple: int) -> int:
    """Return ``number``, or the next one that is a ``multiple``."""
    return -(-number // multiple) * multiple


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros that begin at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + _LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _LINE_BYTES
    return memory[start : start + size].view(dtype).reshape(shape)


def kept(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of ``values`` that begins at a cache line."""
    copy = aligned(values.shape, values.dtype)
    copy[...] = values
    return copy
