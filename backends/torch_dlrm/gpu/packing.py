"""A batch in one buffer of bytes: one copy takes it to the device, where it is viewed, not copied.

Dense values, lengths and ids lie one after the other, so what is used is the front of the buffer.
Rows are padded to a bucket: padded rows have empty bags, and their dense values are whatever lay
there, because no row of a forward depends on another.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from backends.dlrm.gather import DENSE
from backends.jagged import JaggedLayout, coalesce
from scheduler.types import Batch

# Where each part begins: a multiple of what any kernel loads at once.
_ALIGNMENT_BYTES = 256
_FLOAT_BYTES = _LENGTH_BYTES = 4

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What batches of one model are made of."""

    layout: JaggedLayout
    dense_features: int

    @property
    def id_bytes(self) -> int:
        """Return the bytes of one id."""
        return self.layout.values_dtype.itemsize

    def lengths_at(self, rows: int) -> int:
        """Return the byte at which the lengths of ``rows`` padded rows begin."""
        return _aligned(rows * self.dense_features * _FLOAT_BYTES)

    def ids_at(self, rows: int) -> int:
        """Return the byte at which their ids begin."""
        bags = rows * len(self.layout.features)
        return self.lengths_at(rows) + _aligned(bags * _LENGTH_BYTES)

    def size_bytes(self, rows: int, ids: int) -> int:
        """Return the bytes of ``rows`` padded rows with ``ids`` ids."""
        return self.ids_at(rows) + ids * self.id_bytes

    def views(self, buffer: Tensor, rows: int, ids: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return dense (rows, n), lengths (features x rows,) and ids (ids,) in ``buffer``."""
        dense = buffer[: rows * self.dense_features * _FLOAT_BYTES].view(torch.float32)
        start, bags = self.lengths_at(rows), rows * len(self.layout.features)
        lengths = buffer[start : start + bags * _LENGTH_BYTES].view(torch.int32)
        kind = torch.int32 if self.id_bytes == 4 else torch.int64
        start = self.ids_at(rows)
        values = buffer[start : start + ids * self.id_bytes].view(kind)
        return dense.view(rows, self.dense_features), lengths, values


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """One batch of ``rows`` rows and ``ids`` ids, padded to ``padded_rows``; ``host`` is pinned."""

    rows: int
    ids: int
    padded_rows: int
    host: Tensor


class Packer:
    """One reused pinned buffer into which batches are gathered; used by one thread at a time.

    ``buckets``, ascending, are the numbers of rows that batches are padded to; larger ones are not.
    """

    def __init__(
        self, form: Form, buckets: Sequence[int], size_bytes: int, pinned: Callable[[int], Tensor]
    ) -> None:
        self._form = form
        self._buckets = buckets
        self._pinned = pinned
        self._host = pinned(size_bytes)

    def gather(self, batch: Batch) -> Packed:
        """Return ``batch`` in the buffer, which the next call overwrites."""
        form, layout = self._form, self._form.layout
        rows = batch.rows
        ids = sum(request.inputs[layout.values].size for request in batch.requests)
        padded = padded_to(self._buckets, rows)
        size_bytes = form.size_bytes(padded, ids)
        if size_bytes > self._host.numel():
            self._host = self._pinned(1 << (size_bytes - 1).bit_length())
        views = form.views(self._host, padded, ids)
        dense, lengths, values = (view.numpy() for view in views)
        np.concatenate([one.inputs[DENSE] for one in batch.requests], out=dense[:rows])
        bags = lengths.reshape(len(layout.features), padded)
        bags[:, rows:] = 0
        coalesce(layout, batch.requests, bags[:, :rows], values)
        return Packed(rows, ids, padded, self._host[:size_bytes])


def buckets_up_to(most: int) -> tuple[int, ...]:
    """Return numbers of rows to pad to: powers of two and, from 64 on, one between each two."""
    found = [rows for power in range(most.bit_length()) for rows in _step(1 << power)]
    return (*[rows for rows in found if rows < most], most)


def padded_to(buckets: Sequence[int], rows: int) -> int:
    """Return the least bucket that holds ``rows``, or ``rows`` itself."""
    place = bisect_left(buckets, rows)
    return buckets[place] if place < len(buckets) else rows


def _step(power: int) -> tuple[int, ...]:
    return (power, power + power // 2) if power >= 64 else (power,)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
