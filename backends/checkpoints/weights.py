"""A DLRM's weights by their names: TorchRec's, or facebookresearch/dlrm's, in TorchRec's order.

TorchRec has the pairs above the diagonal of the interaction, row by row; facebookresearch those
below it. A pair is the same number in both, so the columns of the first over layer change places.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Literal, TypeAlias

import numpy as np

from backends.checkpoints.read import Array, Tensors
from scheduler.errors import LoadError, first_of

Naming: TypeAlias = Literal["TorchRec", "facebookresearch"]
Layer: TypeAlias = tuple[Array, Array]
_TORCHREC_TABLE = re.compile(
    r"(.*?)sparse_arch\.embedding_bag_collection\.embedding_bags\.([^.]+)\.weight"
)
_FACEBOOK_TABLE = re.compile(r"(.*?)emb_l\.(\d+)\.weight")
_NUMBERED = re.compile(r"(.*?)(\d+)")
_SHOWN = 5
EVERY = "*"
MEAN_HELP = "of a checkpoint: features whose bags are averaged, or *; default: none, all are summed"


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """A DLRM: ``tables`` by name, dense and over layers, (outputs, inputs) and (outputs,).

    ``ordered`` says whether the order of ``tables`` is known to be the model's. ``ignored`` are
    names that are no part of it.
    """

    naming: Naming
    tables: Mapping[str, Array]
    dense: tuple[Layer, ...]
    over: tuple[Layer, ...]
    ordered: bool
    ignored: tuple[str, ...]

    @property
    def dim(self) -> int:
        """Width of every interacting vector."""
        return int(self.dense[-1][0].shape[0])

    def features(self, given: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the features' names in the order of the tables, which ``given`` may say.

        Raises LoadError where it has to.
        """
        known = tuple(name.removeprefix("t_") for name in self.tables)
        if not given:
            if self.ordered:
                return known
            raise LoadError(
                "the file does not keep the order of its tables, by which they interact; give "
                f"--features with the names in the model's order: {first_of(known)}"
            )
        # Other names than the tables' own are given one by one, where the order is known.
        if self.ordered and len(given) == len(known) and not set(given) & set(known):
            return tuple(given)
        if sorted(given) != sorted(known):
            raise LoadError(f"--features are not the {len(known)} tables': {_apart(known, given)}")
        return tuple(given)

    def in_order(self, features: Sequence[str]) -> tuple[Array, ...]:
        """Return the tables of ``features``, which ``features()`` returned."""
        by_feature = {name.removeprefix("t_"): table for name, table in self.tables.items()}
        if set(features) != set(by_feature):
            return tuple(self.tables.values())
        return tuple(by_feature[feature] for feature in features)


def _apart(known: Sequence[str], given: Sequence[str]) -> str:
    """Say which tables have no name in ``given``, and which names no table, or one too many."""
    missing = [name for name in known if name not in given]
    unknown = [name for name in given if name not in known]
    twice = [name for name, times in Counter(given).items() if times > 1 and name in known]
    return "; ".join(
        f"{what} {first_of(names)}"
        for what, names in (("missing", missing), ("no table", unknown), ("twice", twice))
        if names
    )


def averaged(features: Sequence[str], given: str) -> frozenset[str]:
    """Return which of ``features`` have bags that are averaged: ``given``, names or ``*``.

    Raises LoadError for a name that is none of them.
    """
    names = [name for name in given.split(",") if name]
    if names == [EVERY]:
        return frozenset(features)
    if unknown := sorted(set(names).difference(features)):
        raise LoadError(
            f"--mean {first_of(unknown)}: no such feature; there are {first_of(features)}"
        )
    return frozenset(names)


def find_weights(tensors: Tensors) -> Weights:
    """Return the DLRM in ``tensors``. Raises LoadError naming what is missing or too much."""
    for naming, pattern in (("TorchRec", _TORCHREC_TABLE), ("facebookresearch", _FACEBOOK_TABLE)):
        found = [match for name in tensors.arrays if (match := pattern.fullmatch(name))]
        if found:
            prefix = found[0][1]
            names = [match[2] for match in found if match[1] == prefix]
            make = _torchrec if naming == "TorchRec" else _facebook
            return _checked(make(tensors, prefix, names))
    some = ", ".join(list(tensors.arrays)[:_SHOWN])
    raise LoadError(
        "it has neither TorchRec's sparse_arch.embedding_bag_collection.embedding_bags.TABLE.weight"
        f" nor facebookresearch's emb_l.N.weight; it has {some or 'no tensor'}"
    )


def _torchrec(tensors: Tensors, prefix: str, names: list[str]) -> Weights:
    taken: set[str] = set()
    numbers = [_NUMBERED.fullmatch(name) for name in names]
    ordered = tensors.ordered or len(names) == 1
    if not ordered and all(numbers) and len({match[1] for match in numbers if match}) == 1:
        # Numbered like Criteo's columns: nothing else would be meant.
        names = sorted(names, key=lambda name: int(_NUMBERED.fullmatch(name)[2]))  # type: ignore[index]  # all match
        ordered = True
    bags = f"{prefix}sparse_arch.embedding_bag_collection.embedding_bags"
    tables = {name: _take(tensors, f"{bags}.{name}.weight", taken) for name in names}
    dense = tuple(_chain(tensors, f"{prefix}dense_arch.model._mlp.{{}}._linear", taken))
    over = [
        *_chain(tensors, f"{prefix}over_arch.model.0._mlp.{{}}._linear", taken, least=0),
        *_chain(tensors, f"{prefix}over_arch.model.{{}}", taken, first=1),
    ]
    ignored = _left(tensors, prefix, taken)
    return Weights("TorchRec", tables, dense, tuple(over), ordered, ignored)


def _facebook(tensors: Tensors, prefix: str, names: list[str]) -> Weights:
    taken: set[str] = set()
    numbers = sorted(map(int, names))
    if numbers != list(range(len(numbers))):
        raise LoadError(f"emb_l has {len(numbers)} tables, but not numbered 0..{len(numbers) - 1}")
    tables = {
        f"cat_{number}": _take(tensors, f"{prefix}emb_l.{number}.weight", taken)
        for number in numbers
    }
    # Every other module of each chain is an activation.
    dense = tuple(_chain(tensors, f"{prefix}bot_l.{{}}", taken, step=2))
    over = list(_chain(tensors, f"{prefix}top_l.{{}}", taken, step=2))
    ignored = _left(tensors, prefix, taken)
    dim, vectors = dense[-1][0].shape[0], len(tables) + 1
    weight, bias = over[0]
    if weight.shape[1] == dim + vectors * (vectors - 1) // 2:
        over[0] = (_above_the_diagonal(weight, dim, vectors), bias)
    return Weights("facebookresearch", tables, dense, tuple(over), True, ignored)


def _above_the_diagonal(weight: Array, dim: int, vectors: int) -> Array:
    """Return the first over layer with its pairs (i, j < i), row by row, as (j, i), row by row."""
    rows, columns = np.tril_indices(vectors, -1)
    place = np.empty((vectors, vectors), np.int64)
    place[columns, rows] = np.arange(len(rows))
    order = place[np.triu_indices(vectors, 1)]
    return np.ascontiguousarray(np.concatenate([weight[:, :dim], weight[:, dim:][:, order]], 1))


def _chain(
    tensors: Tensors, pattern: str, taken: set[str], *, first: int = 0, step: int = 1,
    least: int = 1,
) -> Iterator[Layer]:  # fmt: skip
    """Yield the layers called ``pattern`` with ``first``, ``first + step``, ... in it."""
    for number in count(first, step):
        name = pattern.format(number)
        if f"{name}.weight" not in tensors.arrays:
            if number < first + least * step:
                raise LoadError(f"the state dict lacks {name}.weight")
            return
        yield _take(tensors, f"{name}.weight", taken), _take(tensors, f"{name}.bias", taken)


def _take(tensors: Tensors, name: str, taken: set[str]) -> Array:
    array = tensors.arrays.get(name)
    if array is None:
        raise LoadError(f"the state dict lacks {name}")
    if array.dtype != np.float32:
        raise LoadError(f"{name} is {array.dtype}; give the FP32 weights")
    if array.ndim != (1 if name.endswith(".bias") else 2) or not array.size:
        raise LoadError(f"{name} has the shape {array.shape}")
    if not np.isfinite(array).all():
        raise LoadError(f"{name} has values that are not finite")
    taken.add(name)
    return array


def _left(tensors: Tensors, prefix: str, taken: set[str]) -> tuple[str, ...]:
    """Return the names beside the model's own. Raises LoadError for one within it."""
    left = [name for name in tensors.arrays if name not in taken]
    # With no prefix, whatever stands beside the model's parts cannot be told from them.
    own = [name for name in left if name.startswith(prefix)]
    if own:
        more = f" and {len(own) - _SHOWN} more" if len(own) > _SHOWN else ""
        raise LoadError(
            f"the state dict has unexpected {', '.join(own[:_SHOWN])}{more}: a DLRM with more in "
            "it than tables, dense and over layers is not served"
        )
    return tuple(left)


def _checked(weights: Weights) -> Weights:
    """Refuse parts that do not fit together, saying what they would be. Raises LoadError."""
    vectors, dim = len(weights.tables) + 1, weights.dim
    for name, table in weights.tables.items():
        if table.shape[1] != dim:
            raise LoadError(f"table {name!r} is {table.shape[1]} wide, the dense vector {dim}")
    _check_layers("a dense layer", weights.dense)
    _check_layers("an over layer", weights.over)
    given = int(weights.over[0][0].shape[1])
    if given != dim + vectors * (vectors - 1) // 2:
        raise LoadError(_other_interaction(given, dim, vectors))
    if weights.over[-1][0].shape[0] != 1:
        raise LoadError(f"the last over layer has {weights.over[-1][0].shape[0]} outputs, not 1")
    return weights


def _check_layers(what: str, layers: tuple[Layer, ...]) -> None:
    for (before, _), (after, _) in pairwise(layers):
        inputs, outputs = after.shape[1], before.shape[0]
        if inputs != outputs:
            raise LoadError(f"{what} takes {inputs} inputs, the one before gives {outputs}")
    for weight, bias in layers:
        if weight.shape[:1] != bias.shape:
            raise LoadError(f"{what} has {bias.size} biases for {weight.shape[0]} outputs")


def _other_interaction(given: int, dim: int, vectors: int) -> str:
    wanted = dim + vectors * (vectors - 1) // 2
    text = (
        f"the first over layer takes {given} inputs; the dot interaction of {vectors - 1} tables"
        f" gives {wanted}"
    )
    for more in range(vectors + 1, 2 * vectors + 8):
        if given == dim + more * (more - 1) // 2:
            text += f", that of {more - 1} tables {given}"
    if given == dim + vectors * (vectors + 1) // 2:
        return f"{text}; one with itself (arch-interaction-itself) would, and is not served"
    if given == vectors * dim:
        return f"{text}; a concatenation (arch-interaction-op=cat) would, and is not served"
    return text
