"""The request that a context and its candidates stand for, spelled out bit for bit.

Both are checked before anything is repeated, sizes too.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from scheduler.errors import Code, ServingError, invalid
from scheduler.types import Array, InferRequest, ModelSpec
from scheduler.validate import validate
from transports.codecs.ranking import DENSE, LENGTHS, VALUES, Split

# What a message may have by default, and so a request that spells everything out: a few hundred
# bytes must not become more.
MAX_EXPANDED_BYTES = 64 << 20


class Rows(NamedTuple):
    """The rows and the inputs of a request, and what all rows have the same, if that is known."""

    rows: int
    inputs: Mapping[str, Array]
    shared: Mapping[str, tuple[int, ...]] | None = None


def expand(
    split: Split, context: Mapping[str, Array], rows: int, candidates: Mapping[str, Array]
) -> Rows:
    """Return the request spelled out: ``context`` in each of ``rows`` rows.

    Both are checked before anything is repeated, sizes too.
    Raises ServingError (INVALID_REQUEST, PAYLOAD_TOO_LARGE) naming the input.
    """
    try:
        _check(split.context, 1, context)
    except ServingError as refusal:
        raise ServingError(refusal.code, f"context: {refusal.detail}") from refusal
    try:
        _check(split.candidates, rows, candidates)
    except ServingError as refusal:
        raise split.explained(refusal) from refusal
    _check_size(context, rows, candidates)
    inputs = dict(candidates)
    if split.columns:
        inputs[DENSE] = _dense(split, context[DENSE], rows, candidates.get(DENSE))
    if split.features:
        inputs[LENGTHS], inputs[VALUES] = _ids(split, context, rows, candidates)
    return Rows(rows, inputs, {DENSE: split.columns, LENGTHS: split.features})


def _check(spec: ModelSpec, rows: int, inputs: Mapping[str, Array]) -> None:
    """Check names, dtypes and shapes as for any request, and that the lengths fit the ids.

    The backend does the latter too, but repeating ids relies on it.
    """
    validate(spec, InferRequest(spec.name, rows, inputs))
    if LENGTHS not in inputs or VALUES not in inputs:
        return
    lengths, found = inputs[LENGTHS], inputs[VALUES].size
    if lengths.min(initial=0) < 0:
        raise invalid(f"{LENGTHS}: has length {lengths.min()}; lengths are at least 0")
    # No length above the number of ids: then the sum cannot overflow.
    if lengths.max(initial=0) > found or lengths.sum(dtype=np.int64) != found:
        total = sum(lengths.ravel().tolist())  # Python's, which does not wrap
        raise invalid(f"{LENGTHS}: the lengths add up to {total}, but {VALUES} has {found} ids")


def _check_size(context: Mapping[str, Array], rows: int, candidates: Mapping[str, Array]) -> None:
    size_bytes = sum([array.nbytes for array in candidates.values()])
    for name, shared in context.items():
        own = candidates.get(name, shared)
        itemsize = np.result_type(shared, own).itemsize  # what either part becomes in the whole
        size_bytes += rows * shared.size * itemsize + own.size * (itemsize - own.itemsize)
    if size_bytes > MAX_EXPANDED_BYTES:
        raise ServingError(
            Code.PAYLOAD_TOO_LARGE,
            f"context: repeated for {rows} candidates it makes a request of {size_bytes} bytes,"
            f" above the limit of {MAX_EXPANDED_BYTES} bytes",
        )


def _dense(split: Split, shared: Array, rows: int, own: Array | None) -> Array:
    dtype = shared.dtype if own is None else np.result_type(shared, own)
    out: Array = np.empty((rows, len(split.columns) + len(split.left_columns)), dtype)
    out[:, _index(split.columns)] = shared
    if own is not None:
        out[:, _index(split.left_columns)] = own
    return out


def _index(columns: tuple[int, ...]) -> slice | list[int]:
    """Return a slice where one will do: numpy writes it several times as fast as a list."""
    run = slice(columns[0], columns[0] + len(columns))
    return run if columns == tuple(range(run.start, run.stop)) else list(columns)


def _ids(
    split: Split, context: Mapping[str, Array], rows: int, candidates: Mapping[str, Array]
) -> tuple[Array, Array]:
    """Return lengths (features, rows) and ids, key-major, in the model's order of features."""
    shared_lengths, shared_values = context[LENGTHS], context[VALUES]
    own_lengths, own_values = candidates.get(LENGTHS), candidates.get(VALUES)
    if own_lengths is None or own_values is None:
        own_lengths, own_values = shared_lengths[:0, :0], shared_values[:0]
    features = len(split.features) + len(split.left_features)
    lengths: Array = np.empty((features, rows), np.result_type(shared_lengths, own_lengths))
    lengths[_index(split.features)] = shared_lengths
    if split.left_features:
        lengths[_index(split.left_features)] = own_lengths
    ends = _ends(lengths)
    values: Array = np.empty(ends[-1], np.result_type(shared_values, own_values))
    start = 0
    for feature, end in zip(split.features, _ends(shared_lengths), strict=True):
        bag = values[ends[feature] - rows * (end - start) : ends[feature]]
        bag.reshape(rows, end - start)[:] = shared_values[start:end]
        start = end
    start = 0
    for feature, end in zip(split.left_features, _ends(own_lengths), strict=True):
        values[ends[feature] - (end - start) : ends[feature]] = own_values[start:end]
        start = end
    return lengths, values


def _ends(lengths: Array) -> list[int]:
    """Return where the ids of each feature end."""
    ends: list[int] = lengths.sum(axis=1, dtype=np.int64).cumsum().tolist()
    return ends
