"""Candidates of one user: what they share comes once, as a context, and is repeated here.

A codec that finds a context reads two requests with the means it has anyway: one of one row against
``Split.context`` and one of the candidates against ``Split.candidates``. Of both ``spelled_out``
makes the arrays of the whole request.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from scheduler.errors import ServingError, invalid
from scheduler.types import ModelSpec, TensorSpec

DENSE, LENGTHS, VALUES = "float_features", "id_list_features.lengths", "id_list_features.values"

_SPLIT = (DENSE, LENGTHS, VALUES)


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
