"""Candidates of one user: what they share comes once, as a context, and is repeated here.

A codec that finds a context reads two requests with the means it has anyway: one of one row against
``Split.context`` and one of the candidates against ``Split.candidates``. ``expand`` makes of both
the arrays of the request spelled out, every one the same bit for bit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

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

    The candidates have what is left, in the model's order. ``context`` and ``candidates`` are what
    each takes; an input of which a part has nothing is not in it.
    """

    spec: ModelSpec
    columns: tuple[int, ...]
    features: tuple[int, ...]
    left_columns: tuple[int, ...]
    left_features: tuple[int, ...]
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
    """Return whether the model has what a context can have, of sizes it fixes, in every request."""
    inputs = {tensor.name: tensor.optional for tensor in spec.inputs if tensor.name in _SPLIT}
    dense = {DENSE} if float_columns(spec) else set()
    ids = {LENGTHS, VALUES} if id_features(spec) else set()
    return bool(inputs) and inputs.keys() == dense | ids and not any(inputs.values())


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
        raise invalid(f"{field}: has {len(given)} entries, expected {count}: one for each column")
    for column in given:
        if not 0 <= column < limit:
            raise invalid(f"{field}: no column {column}, the model has 0..{limit - 1}")
    if len(set(given)) < count:
        twice = next(column for column in given if given.count(column) > 1)
        raise invalid(f"{field}: column {twice} is given twice")
    return tuple(given)


def split(spec: ModelSpec, columns: Sequence[int], features: Sequence[int]) -> Split:
    """Return how ``spec`` falls apart; the numbers are distinct and within the model."""
    given = (tuple(columns), tuple(features))
    left = (_rest(given[0], float_columns(spec)), _rest(given[1], id_features(spec)))
    shared, own = _parts(spec.inputs, given, left)
    return Split(spec, *given, *left, _with_inputs(spec, shared), _with_inputs(spec, own))


def nothing_left() -> ServingError:
    """Return the refusal of a context that has everything and candidates that are not counted."""
    return invalid("context: has every column and feature, so nothing tells the candidates' rows")


def in_both(feature: str) -> ServingError:
    """Return the refusal of a feature that both have."""
    return invalid(f"feature {feature!r}: given in the context and with the candidates, too")


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


_Numbers: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
_Inputs: TypeAlias = tuple[TensorSpec, ...]


# Clients of one model nearly always share the same: looked up, it is a tenth of the work.
@lru_cache(maxsize=64)
def _parts(inputs: _Inputs, given: _Numbers, left: _Numbers) -> tuple[_Inputs, _Inputs]:
    """Return the inputs of the context and of the candidates, by columns and features."""
    shared = [_part(tensor, given) for tensor in inputs if tensor.name in _SPLIT]
    own = [_part(tensor, left) for tensor in inputs]
    return tuple(filter(None, shared)), tuple(filter(None, own))


def _with_inputs(spec: ModelSpec, inputs: _Inputs) -> ModelSpec:
    # Not ``replace``, which takes several times as long.
    return ModelSpec(
        spec.name, spec.version, inputs, spec.outputs, spec.max_batch_rows,
        max_request_rows=spec.max_request_rows, id_policies=spec.id_policies,
        vocabularies=spec.vocabularies,
    )  # fmt: skip


def _part(tensor: TensorSpec, numbers: _Numbers) -> TensorSpec | None:
    """Return what an input is with only these columns and features, None if that is nothing."""
    columns, features = numbers
    if tensor.name == DENSE:
        return replace(tensor, shape=("rows", len(columns))) if columns else None
    if tensor.name == LENGTHS and features:
        labels = tuple([tensor.labels[number] for number in features if tensor.labels])
        return replace(tensor, shape=(len(features), "rows"), labels=labels)
    return None if tensor.name in _SPLIT and not features else tensor


def _rest(taken: Iterable[int], limit: int) -> tuple[int, ...]:
    return tuple(sorted(set(range(limit)).difference(taken)))


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
