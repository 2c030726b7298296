"""The weights of a DLRM as arrays that view its file, and whether they can be trusted."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scheduler.errors import LoadError
from scheduler.types import Array

# fbgemm's SparseType -> bits a value; what is quantised has scale and bias (2 x FP16) before it.
BITS = {0: 32, 1: 16, 2: 8, 3: 4, 4: 2}
_QUANTISED = frozenset({2, 3, 4})
_SCALE_AND_BIAS_BYTES = 4
# What each fbgemm SparseType is called.
KINDS = {0: "fp32", 1: "fp16", 2: "int8", 3: "int4", 4: "int2"}
# FBGEMM's pooling mode of averaged bags; 0 adds them up.
_MEAN = 1
# How many rows' scales are looked at in one go.
_STEP_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One dense layer: ``weight`` (outputs, inputs) and ``bias`` (outputs,), float32."""

    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Every feature's table in one block of bytes, as FBGEMM's inference lookup reads it.

    ``rows`` (features,) counts each table's rows, ``starts`` its first byte in ``block``, ``types``
    its fbgemm SparseType. ``largest`` are the widest dims by type, and the other numbers go to the
    operator as they are.
    """

    block: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    types: npt.NDArray[np.uint8]
    rows: npt.NDArray[np.int64]
    dim: int
    largest: tuple[int, ...]
    pooling: int
    row_alignment: int

    @property
    def features(self) -> int:
        """How many features are looked up."""
        return len(self.rows)

    @property
    def averages(self) -> bool:
        """Whether bags are averaged."""
        return self.pooling == _MEAN

    def row_bytes(self, feature: int) -> int:
        """Return the bytes from one row of a feature's table to the next."""
        kind = int(self.types[feature])
        extra = _SCALE_AND_BIAS_BYTES if kind in _QUANTISED else 0
        size = -(-self.dim * BITS[kind] // 8) + extra
        return -(-size // self.row_alignment) * self.row_alignment

    def is_zero(self, feature: int) -> bool:
        """Return whether every byte of a feature's table is zero."""
        return not self.row_block(feature).any()

    def row_block(self, feature: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a feature's table, all rows."""
        start = int(self.starts[feature])
        return self.block[start : start + int(self.rows[feature]) * self.row_bytes(feature)]


@dataclass(frozen=True, slots=True, eq=False)
class Dlrm:
    """All weights of one DLRM; ``pairs`` (2, n) are the vectors whose products are kept, in order.

    Vector 0 is the dense one, vector 1 + f that of feature f.
    """

    dense: tuple[Layer, ...]
    over: tuple[Layer, ...]
    tables: Tables
    pairs: npt.NDArray[np.int64]

    @property
    def dense_features(self) -> int:
        """How many dense values a row has."""
        return int(self.dense[0].weight.shape[1])


class _Writable:
    """An array's memory as one that may be written."""

    def __init__(self, array: npt.NDArray[np.uint8]) -> None:
        self._array = array  # what owns the memory stays
        (place, _), rest = array.__array_interface__["data"], array.__array_interface__
        self.__array_interface__ = {**rest, "data": (place, False)}


def held(dlrm: Dlrm, *, copy: bool) -> Dlrm:
    """Return ``dlrm`` with tables that may be written: a copy, or of a file that is mapped."""
    block = dlrm.tables.block
    # A mapped file is this process's own, only the arrays that view it are read-only.
    block = np.array(block, order="C") if copy else np.asarray(_Writable(block))
    return replace(dlrm, tables=replace(dlrm.tables, block=block))


def check_bounds(tables: Tables) -> None:
    """Refuse tables that would be read past their end. Raises LoadError."""
    if not tables.starts.shape == tables.rows.shape == tables.types.shape:
        raise LoadError("the model file's tables are damaged: their descriptions differ in number")
    # Features may share a table, but no table reaches into the next one.
    limits = [*tables.starts.tolist(), tables.block.size]
    for feature, (start, rows) in enumerate(
        zip(tables.starts.tolist(), tables.rows.tolist(), strict=True)
    ):
        end = start + rows * tables.row_bytes(feature)
        limit = min((limit for limit in limits if limit > start), default=0)
        if not (start >= 0 and rows >= 1 and end <= limit <= tables.block.size):
            raise LoadError(
                f"the model file's tables are damaged: feature {feature} has {rows} rows up to "
                f"byte {end}, past {limit}"
            )


def check_finite(dlrm: Dlrm) -> None:
    """Refuse weights that are no numbers: every score would be none. Raises LoadError."""
    for part, layers in (("dense_arch", dlrm.dense), ("over_arch", dlrm.over)):
        for number, layer in enumerate(layers):
            if not (np.isfinite(layer.weight).all() and np.isfinite(layer.bias).all()):
                raise LoadError(f"the model file has NaN or infinity in {part}, layer {number}")
    for feature in range(dlrm.tables.features):
        row = _first_bad_row(dlrm.tables, feature)
        if row is not None:
            raise LoadError(
                f"the model file has NaN or infinity in the table of feature {feature}, row {row}"
            )


def _first_bad_row(tables: Tables, feature: int) -> int | None:
    rows = int(tables.rows[feature])
    block = tables.row_block(feature).reshape(rows, -1)
    for first in range(0, rows, _STEP_ROWS):
        bad = ~np.isfinite(_floats(tables, feature, block[first : first + _STEP_ROWS])).all(axis=1)
        if bad.any():
            return first + int(bad.argmax())
    return None


def _floats(tables: Tables, feature: int, rows: npt.NDArray[np.uint8]) -> Array:
    """Return what of each row is floating point: scale and bias, or the values themselves."""
    kind = int(tables.types[feature])
    if kind in _QUANTISED:
        return np.ascontiguousarray(rows[:, :_SCALE_AND_BIAS_BYTES]).view(np.float16)
    width = tables.dim * BITS[kind] // 8
    return np.ascontiguousarray(rows[:, :width]).view(np.float16 if kind == 1 else np.float32)
