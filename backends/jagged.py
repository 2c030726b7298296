"""Jagged ids in TorchRec's key-major layout, on the host: check one request, coalesce several.

``lengths`` is (features, rows): how many ids each bag holds. ``values`` holds the ids themselves,
all rows of feature 0, then all rows of feature 1, and so on.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from scheduler.errors import Missed, ServingError, invalid
from scheduler.types import Array, InferRequest

Ids: TypeAlias = npt.NDArray[np.signedinteger[Any]]
Allocate: TypeAlias = Callable[[int, np.dtype[Any]], npt.NDArray[Any]]

# Up to so many numbers Python looks at faster than NumPy, whose calls cost 2 to 4 us however few.
FEW = 64


@dataclass(frozen=True, slots=True, eq=False)
class JaggedLayout:
    """Name one jagged input and its tables, in wire order; ``table_rows`` is (features,) int64."""

    name: str
    features: tuple[str, ...]
    table_rows: npt.NDArray[np.int64]
    lengths: str = field(init=False)
    values: str = field(init=False)
    fewest_rows: int = field(init=False)
    limits: list[int] = field(init=False)  # as Python has them

    def __post_init__(self) -> None:
        """Derive once what every request asks for: the inputs' names, the smallest table's rows."""
        object.__setattr__(self, "lengths", f"{self.name}.lengths")
        object.__setattr__(self, "values", f"{self.name}.values")
        object.__setattr__(self, "fewest_rows", int(self.table_rows.min()))
        object.__setattr__(self, "limits", self.table_rows.tolist())

    @property
    def values_dtype(self) -> np.dtype[Any]:
        """The narrowest dtype that holds every valid id."""
        fits = int(self.table_rows.max()) <= 2**31
        return np.dtype(np.int32 if fits else np.int64)


def check_jagged(layout: JaggedLayout, request: InferRequest) -> None:
    """Refuse ids and lengths that a lookup would misread; valid input costs a few microseconds.

    Expects lengths (features, rows) and values (n,) of any signed integer dtype, as the spec says.
    Raises ServingError with INVALID_REQUEST, naming field, feature, row, limit and value.
    """
    lengths, values = request.inputs[layout.lengths], request.inputs[layout.values]
    if not is_valid(layout, lengths, values):
        counts = ids_of_features(layout, lengths, values)
        features, positions = ids_outside(layout, values, counts)
        refusal = outside(layout, lengths, values, int(positions[0]))
        refusal.missed = missed(layout, features, ["reject"] * len(layout.features))
        raise refusal


def is_valid(layout: JaggedLayout, lengths: Array, values: Array) -> bool:
    """Return whether every id is a row and every length means some: a few microseconds."""
    if 0 < lengths.size <= FEW and 0 < values.size <= FEW:
        return _few_valid(layout.limits, lengths.ravel().tolist(), values.tolist())
    # As unsigned, a negative number exceeds every limit: one maximum checks both ends, and no
    # length above the number of values means that the sums below cannot overflow.
    if int(np.maximum.reduce(_unsigned(lengths), axis=None, initial=0)) > values.size:
        return False
    if int(np.add.reduce(lengths, axis=None, dtype=np.int64)) != values.size:
        return False
    if in_every_table(layout, values):
        return True
    return in_range(layout, values, np.add.reduce(lengths, axis=1, dtype=np.int64))


def _few_valid(limits: list[int], lengths: list[int], ids: list[int]) -> bool:
    """Return whether ``ids`` are below their features' ``limits``; each has as many ``lengths``."""
    rows, begin = len(lengths) // len(limits), 0
    for feature, limit in enumerate(limits):
        end = begin
        for bag in range(feature * rows, feature * rows + rows):
            if lengths[bag] < 0:
                return False
            end += lengths[bag]
        for number in ids[begin:end]:
            if not 0 <= number < limit:
                return False
        begin = end
    return begin == len(ids)


def ids_of_features(layout: JaggedLayout, lengths: Array, values: Array) -> npt.NDArray[np.int64]:
    """Return how many ids each feature has, if ``lengths`` and ``values`` fit each other.

    Raises ServingError with INVALID_REQUEST.
    """
    if int(np.maximum.reduce(_unsigned(lengths), axis=None, initial=0)) <= values.size:
        counts: npt.NDArray[np.int64] = np.add.reduce(lengths, axis=1, dtype=np.int64)
        if int(np.add.reduce(counts)) == values.size:
            return counts
    raise _misfit(layout, lengths, values)


def in_every_table(layout: JaggedLayout, values: Array) -> bool:
    """Return whether every id is a row of the smallest table, and so of its own."""
    return int(np.maximum.reduce(_unsigned(values), initial=0)) < layout.fewest_rows


def in_range(layout: JaggedLayout, values: Array, counts: npt.NDArray[np.int64]) -> bool:
    """Return whether every id is a row of its table; ``counts`` are the ids of each feature."""
    if not values.size:
        return True
    filled = counts > 0
    starts = (np.cumsum(counts) - counts)[filled]
    return bool((np.maximum.reduceat(_unsigned(values), starts) < layout.table_rows[filled]).all())


def ids_outside(
    layout: JaggedLayout, values: Array, counts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the ids that are no rows of their tables, in order: their features and positions."""
    limits = np.repeat(layout.table_rows, counts)
    ids = values.astype(np.int64, copy=False)
    positions = np.flatnonzero((ids < 0) | (ids >= limits))
    return np.searchsorted(np.cumsum(counts), positions, side="right"), positions


def outside(layout: JaggedLayout, lengths: Array, values: Array, position: int) -> ServingError:
    """Return the refusal of the id at ``position``, which its table has no row for."""
    bag = int(np.searchsorted(lengths.cumsum(dtype=np.int64), position, side="right"))
    rows = layout.table_rows[bag // lengths.shape[1]]
    return invalid(
        f"{layout.values}: {_bag(layout, lengths, bag)} has id {values[position]}; "
        f"the table has {rows} rows (ids 0..{rows - 1})"
    )


def missed(
    layout: JaggedLayout, features: npt.NDArray[np.int64], policies: Sequence[str]
) -> tuple[Missed, ...]:
    """Count ``features``, one entry an id, by feature; ``policies`` says what becomes of each."""
    counts = np.bincount(features, minlength=len(layout.features)).tolist()
    found = zip(layout.features, policies, counts, strict=True)
    return tuple([Missed(feature, policy, count) for feature, policy, count in found if count])


def _unsigned(array: Array) -> npt.NDArray[np.unsignedinteger[Any]]:
    return array.view(_unsigned_dtype(array.dtype))


@functools.lru_cache(maxsize=32)
def _unsigned_dtype(signed: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(signed.str.replace("i", "u"))


def _misfit(layout: JaggedLayout, lengths: Array, values: Array) -> ServingError:
    """Return what is wrong with ``lengths``: a negative one first, then the sum."""
    wide = lengths.astype(np.int64)
    negative = np.flatnonzero(wide < 0)
    if negative.size:
        where = _bag(layout, wide, int(negative[0]))
        length = wide.flat[negative[0]]
        return invalid(f"{layout.lengths}: {where} has length {length}; lengths are at least 0")
    return invalid(
        f"{layout.lengths}: the lengths add up to {_exact_sum(wide)}, "
        f"but {layout.values} has {values.size} ids"
    )


def _bag(layout: JaggedLayout, lengths: Array, index: int) -> str:
    feature, row = divmod(index, lengths.shape[1])
    return f"feature {layout.features[feature]!r} row {row}"


def _exact_sum(lengths: npt.NDArray[np.int64]) -> int:
    """Add up lengths that may each be near 2**63, in two halves that cannot overflow."""
    return (int((lengths >> 32).sum()) << 32) + int((lengths & 0xFFFFFFFF).sum())


class JaggedStaging:
    """Reused buffers into which requests are coalesced; one per thread at a time.

    ``allocate(count, dtype)`` gives the memory (pinned, for a GPU). Lengths are int32 and ids the
    layout's narrowest dtype: FBGEMM takes both as they are on CPU and CUDA.
    """

    def __init__(self, layout: JaggedLayout, rows: int, allocate: Allocate = np.empty) -> None:
        self._layout = layout
        self._allocate = allocate
        size = len(layout.features) * rows
        self._lengths = allocate(size, np.dtype(np.int32))
        self._values = allocate(size, layout.values_dtype)

    def coalesce(self, requests: Sequence[InferRequest]) -> tuple[Ids, Ids]:
        """Return lengths (features, all rows) and values of ``requests``, in their order.

        The requests have passed ``check_jagged``. The arrays view the buffers: valid until the
        next call.
        """
        features, rows = len(self._layout.features), sum(request.rows for request in requests)
        ids = sum(request.inputs[self._layout.values].size for request in requests)
        self._lengths = self._grown(self._lengths, features * rows)
        self._values = self._grown(self._values, ids)
        lengths = self._lengths[: features * rows].reshape(features, rows)
        values = self._values[:ids]
        coalesce(self._layout, requests, lengths, values)
        return lengths, values

    def _grown(self, buffer: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
        if size <= buffer.size:
            return buffer
        return self._allocate(1 << (size - 1).bit_length(), buffer.dtype)


def coalesce(
    layout: JaggedLayout, requests: Sequence[InferRequest], lengths_out: Ids, values_out: Ids
) -> None:
    """Write lengths (features, all rows) and values of ``requests``, in their order.

    The requests have passed ``check_jagged``. ``lengths_out`` may be part of a wider array.
    """
    # An empty request adds no column, and reduceat below cannot name an empty column range.
    filled = [request for request in requests if request.rows]
    if not filled:
        return
    values = [request.inputs[layout.values] for request in filled]
    np.concatenate([request.inputs[layout.lengths] for request in filled], axis=1, out=lengths_out)
    if len(filled) == 1:
        values_out[:] = values[0]
    else:
        _interleave(values, _id_counts(filled, lengths_out), values_out)


def _id_counts(requests: Sequence[InferRequest], lengths: Ids) -> npt.NDArray[np.int64]:
    """Return how many ids each feature of each request has, (features, requests)."""
    starts = np.cumsum([0, *(request.rows for request in requests[:-1])])
    counts: npt.NDArray[np.int64] = np.add.reduceat(lengths, starts, axis=1, dtype=np.int64)
    return counts


def _interleave(values: Sequence[Array], counts: npt.NDArray[np.int64], out: Ids) -> None:
    """Write each request's ids of feature 0, then of feature 1, ... into ``out``."""
    features = counts.shape[0]
    if (counts == counts[0]).all():
        # As many ids in every feature (one id a bag, say): the ids are matrices side by side.
        blocks = [ids.reshape(features, -1) for ids in values]
        np.concatenate(blocks, axis=1, out=out.reshape(features, -1))
        return
    target = np.cumsum(counts).reshape(counts.shape) - counts
    source = np.cumsum(counts.T).reshape(counts.T.shape) - counts.T
    shift = np.repeat((target.T - source).ravel(), counts.T.ravel())
    out[np.arange(out.size) + shift] = np.concatenate(values)
