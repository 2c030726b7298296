"""The ways to write a model's jagged ids as OIP tensors; every one becomes TorchRec's key-major.

For the ids ``id_list_features`` of the features ``user`` and ``item``, a request has one of

    id_list_features.lengths [2, rows] and id_list_features.values [n]    as TorchRec has them
    id_list_features [rows, 2]                                            one id a feature
    user.lengths [rows], user.values [n1], item.lengths ..., item.values  one ragged pair a feature
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.errors import ServingError, invalid
from scheduler.types import Array, ModelSpec, TensorSpec

_PARTS = (".lengths", ".values")
_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class JaggedIds:
    """One jagged input of ids, called ``name``, of so many ``features``.

    ``any_id`` says that ids may be any 64 bits: unsigned ones become the signed of the same bits.
    """

    name: str
    lengths: TensorSpec
    values: TensorSpec
    features: int
    any_id: bool = False

    def encodings(self) -> str:
        """Say how the ids may be written, for people who read a model's metadata."""
        pairs = "one pair FEATURE.lengths [rows], FEATURE.values [n] for each feature"
        named = f"; or {pairs} ({', '.join(self.lengths.labels)})" if self.lengths.labels else ""
        return (
            f"{self.name} [rows, {self.features}], one id a feature; or {self.lengths.name}"
            f" [{self.features}, rows] and {self.values.name} [n], key-major as TorchRec has"
            f" them{named}"
        )

    def needed(self) -> str:
        """Say how the ids may be written, in few words: there may be thousands of features."""
        return (
            f"give {self.name} [rows, {self.features}], or {self.lengths.name} and"
            f" {self.values.name}, or FEATURE.lengths and FEATURE.values for each feature"
        )

    def pair_names(self) -> list[str]:
        """Return the tensors of the pairs, in the model's order."""
        return [f"{feature}{part}" for feature in self.lengths.labels for part in _PARTS]

    def key_major(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return ``arrays`` with the ids in the model's own two inputs.

        Raises ServingError (INVALID_REQUEST) if they are written in two ways, or partly.
        """
        own = [name for name in (self.lengths.name, self.values.name) if name in arrays]
        table = [self.name] if self.name in arrays else []
        pairs = self._pairs_in(arrays, own)
        if self.any_id:
            arrays = {name: _signed(name, array) for name, array in arrays.items()}
        given = [names[0] for names in (own, table, pairs) if names]
        if len(given) > 1:
            raise invalid(f"{self.name}: given in two ways, as {given[0]} and as {given[1]}")
        if table:
            return self._replaced(arrays, table, self._from_table(arrays[self.name]))
        if pairs:
            return self._replaced(arrays, pairs, self._from_pairs(arrays))
        return arrays

    def _pairs_in(self, arrays: Mapping[str, Array], own: Sequence[str]) -> list[str]:
        found = {name for name in arrays if name.endswith(_PARTS) and name not in own}
        return [name for name in self.pair_names() if name in found] if found else []

    def _replaced(
        self, arrays: Mapping[str, Array], names: Sequence[str], ids: tuple[Array, Array]
    ) -> dict[str, Array]:
        taken = frozenset(names)
        others = {name: array for name, array in arrays.items() if name not in taken}
        return {**others, self.lengths.name: ids[0], self.values.name: ids[1]}

    def _from_table(self, ids: Array) -> tuple[Array, Array]:
        if ids.ndim != 2 or ids.shape[1] != self.features:
            raise invalid(
                f"{self.name}: expected shape [rows, {self.features}], got {list(ids.shape)}"
            )
        if ids.dtype.kind != "i":
            raise _no_integers(self.name, ids)
        return np.ones(ids.shape[::-1], self.lengths.dtype), ids.T.ravel()

    def _from_pairs(self, arrays: Mapping[str, Array]) -> tuple[Array, Array]:
        names = self.pair_names()
        found = list(map(arrays.get, names))
        parts = [array for array in found if array is not None and _is_ids(array)]
        if len(parts) < len(names):
            raise self._wrong_part(names, arrays)
        lengths, values = parts[::2], parts[1::2]
        rows = lengths[0].size
        for name, array in zip(names[::2], lengths, strict=True):
            if array.size != rows:
                raise invalid(f"{name}: has {array.size} rows, but {names[0]} has {rows}")
        matrix = np.concatenate(lengths).reshape(len(lengths), rows)
        self._check_sums(matrix, [array.size for array in values])
        return matrix, np.concatenate(values)

    def _wrong_part(self, names: Sequence[str], arrays: Mapping[str, Array]) -> ServingError:
        """Return the refusal of the first part that is missing, or no list of ids."""
        name = next(name for name in names if name not in arrays or not _is_ids(arrays[name]))
        if name not in arrays:
            return invalid(f"{name}: missing; every feature needs its lengths and values")
        if arrays[name].ndim != 1:
            return invalid(f"{name}: expected one dimension, got {list(arrays[name].shape)}")
        return _no_integers(name, arrays[name])

    def _check_sums(self, lengths: Array, found: Sequence[int]) -> None:
        """Compare per feature: sums that agree only in total would move ids between features."""
        counts = np.array(found)
        # No length above the number of ids: then no sum can overflow.
        low, high = lengths.min(axis=1, initial=0), lengths.max(axis=1, initial=0)
        wrong = (low < 0) | (high > counts)
        wrong |= lengths.sum(axis=1, dtype=np.int64) != counts
        if wrong.any():
            raise self._wrong_sum(lengths, found, int(wrong.argmax()))

    def _wrong_sum(self, lengths: Array, found: Sequence[int], index: int) -> ServingError:
        feature = self.lengths.labels[index]
        if lengths[index].min(initial=0) < 0:
            row = int(lengths[index].argmin())
            return invalid(
                f"{feature}.lengths: row {row} has length {lengths[index, row]};"
                " lengths are at least 0"
            )
        total = sum(lengths[index].tolist())  # Python's, which does not wrap
        return invalid(
            f"{feature}.lengths: the lengths add up to {total},"
            f" but {feature}.values has {found[index]} ids"
        )


def jagged_ids(spec: ModelSpec) -> JaggedIds | None:
    """Return the jagged ids that the model of ``spec`` needs, or None if it has no such input."""
    for values in spec.inputs:
        lengths = spec.input(values.lengths) if values.lengths else None
        if lengths is None or values.optional or values.dtype.kind != "i":
            continue
        name = values.name.removesuffix(".values")
        features = lengths.shape[0]
        if lengths.name == f"{name}.lengths" and isinstance(features, int):
            return JaggedIds(name, lengths, values, features, spec.takes_any_id)
    return None


def read_inputs(spec: ModelSpec, arrays: Mapping[str, Array]) -> tuple[int, Mapping[str, Array]]:
    """Return the rows and the inputs of a request for the model of ``spec``, its ids key-major.

    The rows are those of the first input that has them; the scheduler compares the others.
    Raises ServingError (INVALID_REQUEST).
    """
    jagged = jagged_ids(spec)
    inputs = jagged.key_major(arrays) if jagged else arrays
    if jagged and _only_ids_lack(spec, jagged, inputs):
        raise invalid(f"{jagged.name}: missing; {jagged.needed()}")
    for tensor in spec.inputs:
        array = inputs.get(tensor.name)
        if array is not None and "rows" in tensor.shape and array.ndim == len(tensor.shape):
            return int(array.shape[tensor.shape.index("rows")]), inputs
    return 0, inputs


def _only_ids_lack(spec: ModelSpec, jagged: JaggedIds, inputs: Mapping[str, Array]) -> bool:
    """Return whether ``inputs`` have all but the ids; what else is missing is said elsewhere."""
    missing = {one.name for one in spec.inputs if not one.optional and one.name not in inputs}
    return missing == {jagged.lengths.name, jagged.values.name}


def _signed(name: str, array: Array) -> Array:
    """Return ids that are unsigned as signed ones, the largest as those of the same bits."""
    if array.dtype.kind != "u" or name.endswith(_PARTS[0]):
        return array
    return array.view(np.int64) if array.dtype.itemsize == _ID_BYTES else array.astype(np.int64)


def _is_ids(array: Array) -> bool:
    return array.ndim == 1 and array.dtype.kind == "i"


def _no_integers(name: str, array: Array) -> ServingError:
    return invalid(f"{name}: expected signed integers (INT64 or INT32), got {array.dtype}")
