"""A DLRM's tables as FBGEMM's CUDA lookup reads them: in the device's memory or in the host's.

The CUDA kernel loads rows 16 bytes at a time, so every row and table begins at a multiple of 16
bytes; on the CPU rows are packed as they come (68 bytes for 64 INT8 values, 80 here). Within a row
both have scale and bias first. The kernel keeps ids in 32 bits, whatever their dtype.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from backends.torch_dlrm.gpu.hardware import Gpu
from backends.torch_dlrm.recognise import NotRecognisedError
from backends.torch_dlrm.weights import Tables
from scheduler.errors import LoadError

ROW_ALIGNMENT = 16
_TABLE_ALIGNMENT_BYTES = 128
_STEP_BYTES = 64 << 20
_MOST_ROWS = 2**31
# What a forward needs beside the tables, and what should be left to others.
_SPARE_BYTES = 1 << 30
# fbgemm's EmbeddingLocation, SparseType and PoolingMode
_MANAGED, _INT8 = 1, 2
# Whole words of four bytes to a thread: what FBGEMM's own tables have.
_DIM_MULTIPLE = 4

Tensor = torch.Tensor
_fbgemm: Any = torch.ops.fbgemm


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """The tables' bytes: all in ``device`` or all in ``managed``, the other one being empty."""

    device: Tensor
    managed: Tensor
    starts: npt.NDArray[np.int64]


def check_tables(tables: Tables) -> None:
    """Raise NotRecognisedError for tables that the CUDA lookup would misread."""
    if int(tables.rows.max()) > _MOST_ROWS:
        raise NotRecognisedError(
            f"a table has more than {_MOST_ROWS} rows, and ids are cut to 32 bits"
        )
    if tables.dim % _DIM_MULTIPLE:
        raise NotRecognisedError(
            f"its tables are {tables.dim} wide, no multiple of {_DIM_MULTIPLE}"
        )


def place(tables: Tables, gpu: Gpu, *, managed: bool) -> Placed:
    """Copy ``tables`` into memory that ``gpu`` reads. Raises LoadError if there is too little."""
    starts, size_bytes = _places(tables)
    empty = gpu.empty(0)
    if managed:
        target = gpu.managed(size_bytes)
        placed = Placed(empty, target, starts)
    else:
        free_bytes = gpu.free_bytes()
        if size_bytes + _SPARE_BYTES > free_bytes:
            raise LoadError(
                f"the tables take {size_bytes >> 20} MiB; {gpu.device} has {free_bytes >> 20} MiB "
                f"free, of which {_SPARE_BYTES >> 20} are for the rest; --tables uvm leaves them "
                "in host memory"
            )
        target = gpu.empty(size_bytes)
        placed = Placed(target, empty, starts)
    for feature in _distinct(tables):
        _fill(target, int(starts[feature]), tables, feature)
    return placed


def _places(tables: Tables) -> tuple[npt.NDArray[np.int64], int]:
    """Return where each feature's table begins, and the bytes of all; features may share one."""
    places: dict[int, int] = {}
    end = 0
    for feature in _distinct(tables):
        places[int(tables.starts[feature])] = end
        size_bytes = int(tables.rows[feature]) * _row_bytes(tables, feature)
        end += -(-size_bytes // _TABLE_ALIGNMENT_BYTES) * _TABLE_ALIGNMENT_BYTES
    return np.array([places[start] for start in tables.starts.tolist()], np.int64), end


def _distinct(tables: Tables) -> list[int]:
    """Return the first feature of each table; of those that share one, that with most rows."""
    first: dict[int, int] = {}
    for feature, start in enumerate(tables.starts.tolist()):
        known = first.get(start)
        if known is None or tables.rows[feature] > tables.rows[known]:
            first[start] = feature
    return sorted(first.values())


def _row_bytes(tables: Tables, feature: int) -> int:
    return -(-tables.row_bytes(feature) // ROW_ALIGNMENT) * ROW_ALIGNMENT


def _fill(target: Tensor, start: int, tables: Tables, feature: int) -> None:
    """Copy one table, row by row wider, some rows at a time."""
    rows, width = int(tables.rows[feature]), _row_bytes(tables, feature)
    source = tables.row_block(feature).reshape(rows, -1)
    step = max(1, _STEP_BYTES // width)
    for first in range(0, rows, step):
        part = source[first : first + step]
        wide = np.zeros((len(part), width), np.uint8)
        wide[:, : part.shape[1]] = part
        begin = start + first * width
        target[begin : begin + wide.size].copy_(torch.from_numpy(wide.reshape(-1)))


class FbgemmLookup:
    """The pooled rows of all tables, on the device."""

    def __init__(self, tables: Tables, placed: Placed, gpu: Gpu) -> None:
        self.features = tables.features
        location = _MANAGED if placed.managed.numel() else gpu.location
        self._device, self._managed = placed.device, placed.managed
        self._locations = gpu.put(torch.full((self.features,), location, dtype=torch.int32))
        self._starts = gpu.put(torch.from_numpy(placed.starts))
        self._types = gpu.put(torch.from_numpy(np.array(tables.types)))
        self._ends = gpu.put(torch.arange(self.features + 1, dtype=torch.int32) * tables.dim)
        self._width, self._largest = self.features * tables.dim, tables.largest
        self._pooling = tables.pooling

    def __call__(self, lengths: Tensor, ids: Tensor) -> Tensor:
        """Return the pooled rows (rows, features x dim)."""
        offsets = _fbgemm.asynchronous_complete_cumsum(lengths).to(ids.dtype)
        pooled: Tensor = _fbgemm.int_nbit_split_embedding_codegen_lookup_function(
            self._device, self._managed, self._locations, self._starts, self._types, self._ends,
            self._width, *self._largest, ids, offsets, self._pooling, None, 0, None, None,
            ROW_ALIGNMENT, 0, -1, -1,
        )  # fmt: skip
        return pooled


class TritonLookup:
    """The same for INT8 tables, without FBGEMM."""

    def __init__(self, tables: Tables, placed: Placed, gpu: Gpu) -> None:
        # Triton is an extra, and is imported where it is needed only.
        from backends.kernels import lookup_triton  # noqa: PLC0415

        self.features = tables.features
        self._pool = lookup_triton.pool
        self._rows = lookup_triton.Rows(
            block=placed.managed if placed.managed.numel() else placed.device,
            starts=gpu.put(torch.from_numpy(placed.starts)),
            row_bytes=_row_bytes(tables, 0),
            dim=tables.dim,
            mean=tables.averages,
        )

    def __call__(self, lengths: Tensor, ids: Tensor) -> Tensor:
        """Return the pooled rows (rows, features x dim)."""
        return self._pool(self._rows, lengths, ids)


Lookup: TypeAlias = FbgemmLookup | TritonLookup


def make_lookup(tables: Tables, placed: Placed, gpu: Gpu) -> Lookup:
    """Return FBGEMM's lookup, or Triton's where it has none for the device.

    Raises NotRecognisedError where neither can.
    """
    if gpu.has_lookup():
        return FbgemmLookup(tables, placed, gpu)
    if set(tables.types.tolist()) != {_INT8}:
        raise NotRecognisedError(
            "FBGEMM's build has no lookup for CUDA, and its tables are not INT8"
        )
    try:
        return TritonLookup(tables, placed, gpu)
    except ImportError as error:
        raise NotRecognisedError(f"FBGEMM's build has no lookup for CUDA, and {error}") from error
