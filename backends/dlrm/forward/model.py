"""A DLRM as plain nouns: what is looked up, what is multiplied, in which order."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Kind: TypeAlias = Literal["int8", "fp16", "fp32", "int4"]
Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]

KINDS: tuple[Kind, ...] = ("int8", "fp16", "fp32", "int4")
# What is quantised starts with its scale and its bias, both FP16: value = scale * code + bias. An
# INT4 row has two codes a byte, the first one in the low bits.
QUANTISED: frozenset[Kind] = frozenset({"int8", "int4"})
SCALE_BIAS_BYTES = 4
_ITEM_BITS = {"int8": 8, "fp16": 16, "fp32": 32, "int4": 4}


def row_bytes(kind: Kind, dim: int) -> int:
    """Return the bytes of one row without what pads it."""
    return -(-dim * _ITEM_BITS[kind] // 8) + (SCALE_BIAS_BYTES if kind in QUANTISED else 0)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """One id feature and its rows: ``data`` is (rows, bytes of a row, padded) as they are stored.

    ``mean`` pools a bag by its mean instead of its sum.
    """

    feature: str
    kind: Kind
    dim: int
    data: Bytes
    mean: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """``weight`` is (outputs, inputs), ``bias`` (outputs,); ``relu`` follows or not."""

    weight: Floats
    bias: Floats
    relu: bool


@dataclass(frozen=True, slots=True, eq=False)
class Dlrm:
    """Dense layers, tables in wire order, interaction, over layers, one score a row.

    ``interacted`` gives the position of each interacting vector among the tables, in the order of
    the interaction; the dense vector comes before them. ``storage`` is the memory that every
    table's data views; what is written there stays in this process.
    """

    tables: tuple[Table, ...]
    interacted: tuple[int, ...]
    dense: tuple[Linear, ...]
    over: tuple[Linear, ...]
    sigmoid: bool
    output: str
    storage: Bytes

    def writable(self, table: Table) -> Bytes:
        """Return the rows of ``table``, (rows, bytes of a row), to be written."""
        start = table.data.ctypes.data - self.storage.ctypes.data
        return self.storage[start : start + table.data.nbytes].reshape(table.data.shape)

    @property
    def dense_features(self) -> int:
        """Dense values a row."""
        return int(self.dense[0].weight.shape[1])

    @property
    def dim(self) -> int:
        """Width of every interacting vector."""
        return int(self.dense[-1].weight.shape[0])

    @property
    def interaction_width(self) -> int:
        """Inputs of the over layers: the dense vector and one number a pair."""
        vectors = len(self.interacted) + 1
        return self.dim + vectors * (vectors - 1) // 2
