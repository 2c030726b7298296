"""The ``data`` of an Open Inference Protocol tensor in JSON: nested lists or one flat list."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler.errors import invalid, shown
from scheduler.types import Array
from transports.codecs.json_values import flattened, floats, integers, require
from transports.codecs.oip_tensors import (
    BYTES,
    Tensor,
    tensor_dtype,
    tensor_from_texts,
    tensor_from_values,
)


def tensor_from_data(name: str, datatype: str, shape: Sequence[int], data: list[Any]) -> Tensor:
    """Return the tensor that ``data`` spells out, nested as ``shape`` says or flat, row-major.

    Raises ServingError (INVALID_REQUEST) naming the entry, what was expected and found.
    """
    label = f"tensor {shown(name)}"
    flat = _unnested(label, shape, data) if data and type(data[0]) is list else data
    if datatype == BYTES:
        require(str, flat, lambda index: f"{label}: entry {index}", "a text")
        return tensor_from_texts(name, shape, flat)
    dtype = tensor_dtype(name, datatype)
    return tensor_from_values(name, datatype, shape, _array(label, dtype, flat))


def data_of(tensor: Tensor) -> Array:
    """Return what orjson writes as the flat ``data`` of ``tensor``; NaN and infinity as null."""
    return tensor.array.reshape(-1)


def _unnested(label: str, shape: Sequence[int], data: list[Any]) -> list[Any]:
    level: list[Any] = [data]
    for axis, size in enumerate(shape):
        if not level:
            break
        require(list, level, lambda index: f"{label}: data, list {index}", "a list")
        if set(map(len, level)) != {size}:
            found = next(len(entries) for entries in level if len(entries) != size)
            raise invalid(
                f"{label}: data has a list of {found} at depth {axis + 1}, expected {size}"
            )
        level = flattened(level)
    return level


def _array(label: str, dtype: np.dtype[np.generic], values: list[Any]) -> Array:
    def place(index: int) -> str:
        return f"{label}: entry {index}"

    if dtype.kind == "f":
        return floats(values, place, dtype)
    if dtype.kind == "b":
        require(bool, values, place, "true or false")
        return np.fromiter(values, dtype, len(values))
    return integers(values, place, dtype)
