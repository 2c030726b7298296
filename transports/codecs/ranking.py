"""Candidates of one user: what they share comes once, as a context, and is repeated here.

A codec that finds a context reads two requests with the means it has anyway: one of one row against
``Split.context`` and one of the candidates against ``Split.candidates``. ``expand`` makes of both
the arrays of the request spelled out, every one the same bit for bit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler.errors import Code, ServingError, invalid
from scheduler.types import Array, InferRequest, ModelSpec, TensorSpec
from scheduler.validate import validate

DENSE, LENGTHS, VALUES = "float_features", "id_list_features.lengths", "id_list_features.values"

_SPLIT = (DENSE, LENGTHS, VALUES)

# What a message may have by default, and so a request that spells everything out: a few hundred
# bytes must not become more.
MAX_EXPANDED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Split:
    """Who has what of ``spec``: the context some float columns and id features, given by number.

    ``context`` and ``candidates`` are what each takes, the candidates the rest in its order; an
    input of which nothing is left is not in it.
    """

    spec: ModelSpec
    columns: tuple[int, ...]
    features: tuple[int, ...]
    context: ModelSpec
    candidates: ModelSpec

    def explained(self, refusal: ServingError) -> ServingError:
        """Return a ``refusal`` of the candidates that says what they are without."""
        return ServingError(
            refusal.code,
            f"{refusal.detail}; the context has {len(self.columns)} of {float_columns(self.spec)}"
            f" float columns and {len(self.features)} of {id_features(self.spec)} id features",
        )


def takes_context(spec: ModelSpec) -> bool:
    """Return whether the model has what a context can have, in sizes it fixes."""
    inputs = [(DENSE, float_columns(spec)), (LENGTHS, id_features(spec))]
    present = [size for name, size in inputs if spec.input(name)]
    return bool(present) and all(present)


def float_columns(spec: ModelSpec) -> int:
    """Return how many float columns the model fixes, 0 if it has none."""
    tensor = spec.input(DENSE)
    width = tensor.shape[-1] if tensor and len(tensor.shape) == 2 else None
    return width if isinstance(width, int) else 0


def id_features(spec: ModelSpec) -> int:
    """Return how many id features the model has."""
    tensor = spec.input(LENGTHS)
    features = tensor.shape[0] if tensor else None
    return features if isinstance(features, int) else 0


def chosen(field: str, given: Sequence[int] | None, count: int, limit: int) -> tuple[int, ...]:
    """Return the ``count`` of ``limit`` columns that a context has: the leading ones if not given.

    Raises ServingError (INVALID_REQUEST) whose detail begins with ``field``.
    """
    if count > limit:
        raise invalid(f"{field}: the context has {count} columns, the model {limit}")
    if given is None:
        return tuple(range(count))
    if len(given) != count:
        raise invalid(f"{field}: has {len(given)} columns, expected {count}: one for each value")
    for column in given:
        if not 0 <= column < limit:
            raise invalid(f"{field}: no column {column}, the model has 0..{limit - 1}")
    if len(set(given)) < count:
        twice = next(column for column in given if given.count(column) > 1)
        raise invalid(f"{field}: column {twice} is given twice")
    return tuple(given)


def split(spec: ModelSpec, columns: Sequence[int], features: Sequence[int]) -> Split:
    """Return how ``spec`` falls apart; the numbers are distinct and within the model."""
    rest = (_rest(columns, float_columns(spec)), _rest(features, id_features(spec)))
    shared = [
        _part(tensor, len(columns), features) for tensor in spec.inputs if tensor.name in _SPLIT
    ]
    own = [_part(tensor, len(rest[0]), rest[1]) for tensor in spec.inputs]
    return Split(
        spec,
        tuple(columns),
        tuple(features),
        context=replace(spec, inputs=tuple(filter(None, shared))),
        candidates=replace(spec, inputs=tuple(filter(None, own))),
    )


def nothing_left() -> ServingError:
    """Return the refusal of a context that has everything and candidates that are not counted."""
    return invalid("context: has every column and feature, so nothing tells the candidates' rows")


def in_both(feature: str) -> ServingError:
    """Return the refusal of a feature that both have."""
    return invalid(f"feature {feature!r}: given in the context and with the candidates, too")


def expand(
    split: Split, context: Mapping[str, Array], rows: int, candidates: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the inputs of the request spelled out: ``context`` in each of ``rows`` rows.

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
    return inputs


def _part(tensor: TensorSpec, columns: int, features: Sequence[int]) -> TensorSpec | None:
    """Return what is left of an input that has so many columns and these features, if any."""
    if tensor.name == DENSE:
        return replace(tensor, shape=("rows", columns)) if columns else None
    if tensor.name == LENGTHS and features:
        labels = tuple([tensor.labels[number] for number in features if tensor.labels])
        return replace(tensor, shape=(len(features), "rows"), labels=labels)
    return None if tensor.name in _SPLIT and not features else tensor


def _rest(taken: Iterable[int], limit: int) -> tuple[int, ...]:
    return tuple(sorted(set(range(limit)).difference(taken)))


def _check(spec: ModelSpec, rows: int, inputs: Mapping[str, Array]) -> None:
    """Check names, dtypes and shapes as for any request, and that the lengths fit the ids.

    The backend would do the latter, but repeating ids already relies on it.
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
    width = float_columns(split.spec)
    dtype = shared.dtype if own is None else np.result_type(shared, own)
    out: Array = np.empty((rows, width), dtype)
    out[:, _index(split.columns)] = shared
    if own is not None:
        out[:, _index(_rest(split.columns, width))] = own
    return out


def _index(columns: tuple[int, ...]) -> slice | list[int]:
    """Return a slice where one will do: numpy writes it several times as fast as a list."""
    first = columns[0]
    if columns == tuple(range(first, first + len(columns))):
        return slice(first, first + len(columns))
    return list(columns)


def _ids(
    split: Split, context: Mapping[str, Array], rows: int, candidates: Mapping[str, Array]
) -> tuple[Array, Array]:
    """Return lengths (features, rows) and ids, key-major, in the model's order of features."""
    shared, own = list(split.features), list(_rest(split.features, id_features(split.spec)))
    empty = (np.empty((0, rows), context[LENGTHS].dtype), np.empty(0, context[VALUES].dtype))
    own_lengths, own_values = (candidates[LENGTHS], candidates[VALUES]) if own else empty
    lengths: Array = np.empty(
        (len(shared) + len(own), rows), np.result_type(context[LENGTHS], own_lengths)
    )
    lengths[shared], lengths[own] = context[LENGTHS], own_lengths
    ends = np.cumsum(lengths.sum(axis=1, dtype=np.int64)).tolist()
    values: Array = np.empty(ends[-1], np.result_type(context[VALUES], own_values))
    target = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    for feature, ids in zip(shared, _bags(context[LENGTHS], context[VALUES]), strict=True):
        values[target[feature]].reshape(rows, ids.size)[:] = ids
    for feature, ids in zip(own, _bags(own_lengths, own_values), strict=True):
        values[target[feature]] = ids
    return lengths, values


def _bags(lengths: Array, values: Array) -> Iterable[Array]:
    """Yield the ids of each feature, all of its rows."""
    start = 0
    for end in np.cumsum(lengths.sum(axis=1, dtype=np.int64)).tolist():
        yield values[start:end]
        start = end
