"""What both JSON layouts share: the model's names and widths, and lists -> arrays."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from scheduler.errors import ServingError, invalid
from scheduler.types import Array, ModelSpec, Vocabulary
from transports.codecs.strict_json import shown

DENSE = "float_features"
SPARSE = "id_list_features"
FLOAT32: np.dtype[np.generic] = np.dtype(np.float32)

# Turns an entry's index in a flat list into the words that name it; called for a refusal only.
Place = Callable[[int], str]


def dense_width(spec: ModelSpec) -> int:
    """Return how many dense features a row has. Raises ServingError if the spec leaves it open."""
    dense = spec.input(DENSE)
    width = dense.shape[-1] if dense else None
    if not isinstance(width, int):
        raise invalid(f"model {spec.name} fixes no width for {DENSE}: send it in a binary form")
    return width


def features(document: dict[str, Any], spec: ModelSpec) -> dict[str, Any]:
    """Return the members of ``id_list_features`` in the model's order.

    Raises ServingError naming an unknown or missing feature.
    """
    names = feature_names(spec)
    members = document[SPARSE]
    if type(members) is not dict:
        raise invalid(f"{SPARSE} is {shown(members)}, expected an object of features")
    if members.keys() != set(names):
        raise _wrong_features(members, names)
    return {name: members[name] for name in names}


def feature_names(spec: ModelSpec) -> tuple[str, ...]:
    """Return the model's id features in its order. Raises ServingError if it names none."""
    lengths = spec.input(f"{SPARSE}.lengths")
    names = lengths.labels if lengths else ()
    if not names:
        raise invalid(f"model {spec.name} does not name its features: send ids in a binary form")
    return names


def check_tensor_fields(document: dict[str, Any], spec: ModelSpec) -> None:
    """Refuse a ``document`` that lacks a field of tensors, or has one too many."""
    taken = {tensor.name.partition(".")[0] for tensor in spec.inputs}
    for field in (DENSE, SPARSE):
        if field in taken and field not in document:
            raise invalid(f"field {field} is missing")
        if field in document and field not in taken:
            raise invalid(f"model {spec.name} has no input {field}")


def flattened(lists: Iterable[list[Any]]) -> list[Any]:
    """Return the entries of all ``lists`` in order; faster than chaining them."""
    flat: list[Any] = []
    for values in lists:
        flat += values
    return flat


def require(expected: type, values: list[Any], place: Place, words: str) -> None:
    """Refuse the first of ``values`` that is not exactly of type ``expected``."""
    # Counting is an identity comparison per entry: half the time of collecting a set of types.
    if list(map(type, values)).count(expected) != len(values):
        raise _wrong_type((expected,), values, place, words)


def floats(values: list[Any], place: Place, dtype: np.dtype[np.generic] = FLOAT32) -> Array:
    """Return ``values`` as ``dtype``. Raises ServingError naming what is no number or too large."""
    types = list(map(type, values))
    if types.count(float) + types.count(int) != len(values):
        raise _wrong_type((float, int), values, place, "a number")
    with np.errstate(over="ignore"):
        array = np.fromiter(values, dtype, len(values))
    finite = np.isfinite(array)
    if not finite.all():
        index = int(finite.argmin())
        limit = np.finfo(dtype.name).max
        raise invalid(f"{place(index)} is {values[index]}, over {dtype}'s limit {limit!s}")
    return array


def dtype_of(spec: ModelSpec, part: str) -> np.dtype[np.generic]:
    """Return the dtype the model gives ``id_list_features.<part>``, else int64."""
    tensor = spec.input(f"{SPARSE}.{part}")
    return tensor.dtype if tensor else np.dtype(np.int64)


def integers(values: list[Any], place: Place, dtype: np.dtype[np.generic]) -> Array:
    """Return ``values`` as ``dtype``.

    Raises ServingError naming what is no integer (booleans included) or does not fit.
    """
    require(int, values, place, "an integer")
    try:
        return np.fromiter(values, dtype, len(values))
    except OverflowError as error:
        limits = np.iinfo(dtype.name)
        index = next(i for i, value in enumerate(values) if not limits.min <= value <= limits.max)
        raise invalid(f"{place(index)} is {values[index]}, which does not fit {dtype}") from error


def ids(
    values: list[Any], counts: Callable[[], Mapping[str, int]], place: Place, spec: ModelSpec
) -> Array:
    """Return ``values``, so many of each feature as ``counts()`` says, one after another, as ids.

    Texts become ids where their feature has a vocabulary, numbers from 2**63 on the negative ones
    of the same bits where any 64 bits may be an id. Raises ServingError naming the entry.
    """
    if spec.vocabularies:
        _look_up(values, counts(), spec.vocabularies)
    if spec.takes_any_id and list(map(type, values)).count(int) == len(values):
        values = [_wrapped(value) for value in values] if max(values, default=0) >> 63 else values
    return integers(values, place, dtype_of(spec, "values"))


def _wrapped(value: int) -> int:
    return value - (1 << 64) if 1 << 63 <= value < 1 << 64 else value


def _look_up(
    values: list[Any], counts: Mapping[str, int], vocabularies: Mapping[str, Vocabulary]
) -> None:
    """Put ids in the place of texts."""
    start = 0
    for feature, count in counts.items():
        vocabulary = vocabularies.get(feature)
        own = range(start, start + count) if vocabulary else ()
        texts = [index for index in own if type(values[index]) is str]
        if vocabulary and texts:
            found = vocabulary.ids_of([values[index] for index in texts])
            for index, one in zip(texts, found.tolist(), strict=True):
                values[index] = one
        start += count


def unknown_feature(field: str, name: str, names: tuple[str, ...]) -> ServingError:
    """Return the refusal of a feature ``name`` in ``field`` that is none of ``names``."""
    known = f"the model has {len(names)}, from {names[0]} to {names[-1]}"
    return invalid(f"{field} has unknown feature {shown(name)}: {known}")


def _wrong_type(
    expected: tuple[type, ...], values: list[Any], place: Place, words: str
) -> ServingError:
    index = list(map(expected.__contains__, map(type, values))).index(False)
    return invalid(f"{place(index)} is {shown(values[index])}, expected {words}")


def _wrong_features(members: dict[str, Any], names: tuple[str, ...]) -> ServingError:
    for name in members:
        if name not in names:
            return unknown_feature(SPARSE, name, names)
    missing = [name for name in names if name not in members]
    return invalid(f"{SPARSE} lacks feature {missing[0]} ({len(missing)} of {len(names)} missing)")
