"""A request by its rows: how many ids it holds, and any range of its rows as a request."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from scheduler.types import Array, InferRequest, ModelSpec, TensorSpec


def id_inputs(spec: ModelSpec) -> tuple[TensorSpec, ...]:
    """Return the inputs that hold embedding ids: integers, as many as their lengths say."""
    return tuple(tensor for tensor in spec.inputs if tensor.lengths and tensor.dtype.kind in "iu")


def can_cut(spec: ModelSpec) -> bool:
    """Return whether a request can be cut by rows: every ragged input says what cuts it."""
    return all(tensor.lengths or "*" not in tensor.shape for tensor in spec.inputs)


def count_ids(id_tensors: tuple[TensorSpec, ...], inputs: Mapping[str, Array]) -> int:
    """Return the ids in ``inputs``: what their embedding lookup costs."""
    return sum([inputs[tensor.name].size for tensor in id_tensors if tensor.name in inputs])


def ids_before(id_tensors: tuple[TensorSpec, ...], request: InferRequest) -> npt.NDArray[np.int64]:
    """Return how many ids come before each row, (rows + 1,); the last is their number."""
    by_row = np.zeros(request.rows + 1, np.int64)
    for tensor in id_tensors:
        if tensor.name in request.inputs:
            lengths = request.inputs[tensor.lengths].reshape(-1, request.rows)
            by_row[1:] += lengths.sum(axis=0, dtype=np.int64)
    np.cumsum(by_row, out=by_row)
    return by_row


def cut(spec: ModelSpec, request: InferRequest, start: int, stop: int) -> InferRequest:
    """Return rows ``start`` to ``stop`` of ``request`` as a request of its own.

    The request has been checked: its lengths add up to its values.
    """
    if (start, stop) == (0, request.rows):
        return request
    inputs = {
        tensor.name: _cut_input(tensor, request, start, stop)
        for tensor in spec.inputs
        if tensor.name in request.inputs
    }
    return replace(request, rows=stop - start, inputs=inputs)


def _cut_input(tensor: TensorSpec, request: InferRequest, start: int, stop: int) -> Array:
    array = request.inputs[tensor.name]
    if tensor.lengths:
        lengths = request.inputs[tensor.lengths].reshape(-1, request.rows)
        # Sums by feature: the ids before the rows wanted, those of the rows, and those after.
        before = lengths[:, :start].sum(axis=1, dtype=np.int64)
        own = lengths[:, start:stop].sum(axis=1, dtype=np.int64)
        after = lengths[:, stop:].sum(axis=1, dtype=np.int64)
        ends = np.cumsum(before + own + after) - after
        return np.concatenate(
            [array[first:last] for first, last in zip(ends - own, ends, strict=True)]
        )
    if "rows" not in tensor.shape:
        return array
    index = [slice(None)] * array.ndim
    index[tensor.shape.index("rows")] = slice(start, stop)
    return array[tuple(index)]
