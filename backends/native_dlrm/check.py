"""Refuse a model whose parts do not fit together, or whose weights are no numbers."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from backends.dlrm.forward.model import QUANTISED, SCALE_BIAS_BYTES, Dlrm, Linear, Table, row_bytes
from backends.native_dlrm.errors import UnknownModelError
from scheduler.errors import LoadError

_BLOCK_ROWS = 1 << 16


def check_shapes(dlrm: Dlrm) -> None:
    """Check widths from one layer to the next, and of every table. Raises LoadError."""
    _check_layers("dense layer", dlrm.dense)
    _check_layers("over layer", dlrm.over)
    for table in dlrm.tables:
        needed, given = row_bytes(table.kind, table.dim), table.data.shape[1]
        if needed > given:
            raise LoadError(f"table {table.feature!r}: a row of {needed} bytes has only {given}")
        if table.dim != dlrm.dim:
            raise UnknownModelError(
                f"table {table.feature!r} is {table.dim} wide, the dense vector {dlrm.dim}"
            )
    width, given = dlrm.interaction_width, dlrm.over[0].weight.shape[1]
    if width != given:
        raise LoadError(f"the first over layer takes {given} inputs, the interaction has {width}")
    outputs = dlrm.over[-1].weight.shape[0]
    if outputs != 1:
        raise UnknownModelError(f"the last layer has {outputs} outputs; only 1 is served")


def _check_layers(what: str, layers: tuple[Linear, ...]) -> None:
    for number, (before, after) in enumerate(pairwise(layers), 1):
        outputs, inputs = before.weight.shape[0], after.weight.shape[1]
        if outputs != inputs:
            raise LoadError(
                f"{what} {number} takes {inputs} inputs, the one before gives {outputs}"
            )
    for number, layer in enumerate(layers):
        if layer.bias.shape != layer.weight.shape[:1]:
            raise LoadError(
                f"{what} {number} has {layer.bias.size} biases for {layer.weight.shape[0]} outputs"
            )
        if not (np.isfinite(layer.weight).all() and np.isfinite(layer.bias).all()):
            raise LoadError(f"{what} {number} has weights that are not finite")


def check_rows(dlrm: Dlrm) -> None:
    """Read every table once and refuse a value that is not finite. Raises LoadError."""
    for table in dlrm.tables:
        for start in range(0, len(table.data), _BLOCK_ROWS):
            finite = _finite(table, start)
            if not finite.all():
                row = start + int(np.argmin(finite))
                raise LoadError(f"table {table.feature!r}: row {row} is not finite")


def _finite(table: Table, start: int) -> npt.NDArray[np.bool_]:
    block = table.data[start : start + _BLOCK_ROWS]
    if table.kind in QUANTISED:
        values = np.ascontiguousarray(block[:, :SCALE_BIAS_BYTES]).view(np.float16)
    else:
        dtype = np.float16 if table.kind == "fp16" else np.float32
        values = np.ascontiguousarray(block[:, : row_bytes(table.kind, table.dim)]).view(dtype)
    finite: npt.NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(values), axis=1)
    return finite
