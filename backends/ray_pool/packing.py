"""A batch as it travels: one flat array an input, whatever the number of requests.

What Ray moves out of band, without copies on one machine, are arrays: three of them cost less than
three for each of a hundred requests.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from scheduler.types import Array, Batch, InferRequest

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PackedInput:
    """One input of all requests: ``data`` is flat, ``shapes`` has the shape in each request."""

    data: Array
    shapes: tuple[Shape, ...]

    def parts(self) -> Iterator[Array]:
        """Yield the array of each request: views."""
        start = 0
        for shape in self.shapes:
            size = int(np.prod(shape, dtype=np.int64))
            yield self.data[start : start + size].reshape(shape)
            start += size


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """The requests of a batch, as far as a backend computes by them."""

    rows: tuple[int, ...]
    shared: tuple[Mapping[str, tuple[int, ...]] | None, ...]
    inputs: Mapping[str, PackedInput]

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(each.data.nbytes for each in self.inputs.values())


def pack(batch: Batch) -> Packed:
    """Copy ``batch``, once; all its requests have the same inputs, as the scheduler sees to."""
    requests = batch.requests
    inputs = {
        name: _packed([request.inputs[name] for request in requests]) for name in requests[0].inputs
    }
    rows = tuple([request.rows for request in requests])
    return Packed(rows, tuple([request.shared for request in requests]), inputs)


def unpack(packed: Packed) -> list[InferRequest]:
    """Return the requests; their arrays view those of ``packed`` and may not be written."""
    parts = {name: list(each.parts()) for name, each in packed.inputs.items()}
    return [
        InferRequest("", rows, {name: arrays[at] for name, arrays in parts.items()}, shared=shared)
        for at, (rows, shared) in enumerate(zip(packed.rows, packed.shared, strict=True))
    ]


def _packed(arrays: list[Array]) -> PackedInput:
    flat = [array.reshape(-1) for array in arrays]
    # Of several dtypes, all of which the input takes without loss, the widest.
    data = flat[0] if len(flat) == 1 else np.concatenate(flat)
    return PackedInput(data, tuple([array.shape for array in arrays]))
