"""Make rows of a request's ids, by the policy of each table; one place for every backend.

Runs once a request, before it is queued: what waits, is cut, shares a batch and is looked up has
nothing but rows in range, so that a request's scores do not depend on its batch.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from backends.ids.hashing import modulo_rows, murmur3_rows
from backends.ids.policy import Function, Policy, shown
from backends.ids.vocabulary import UNKNOWN, Vocabulary
from backends.jagged import (
    FEW,
    JaggedLayout,
    check_jagged,
    ids_of_features,
    ids_outside,
    in_every_table,
    in_range,
    is_valid,
    missed,
    outside,
)
from scheduler.backend import Checked
from scheduler.errors import Missed, ServingError, invalid
from scheduler.types import Array, InferRequest

Int64s = npt.NDArray[np.int64]
_HASHES = {"murmur3": murmur3_rows, "modulo": modulo_rows}
# Up to so many, a run after the other is faster than a divisor for each id.
_FEW_RUNS = 6
# Up to so many ids of one feature, what is told of them is kept.
_FEW_MISSED = 256


class Settled(NamedTuple):
    """Rows of one request's ids.

    ``counts`` says how many ids each feature had, ``outside`` how many of them had no row, where
    they are not hashed.
    """

    lengths: Array
    values: Int64s
    counts: Int64s
    outside: Int64s


class SettlesIds(Protocol):
    """A faster way to make rows of a whole request's ids."""

    def __call__(self, lengths: Array, values: Array) -> Settled | None:
        """Return rows of ``values``; None if a table refuses one, or they do not fit."""


class IdRules:
    """Apply ``policies``, one a feature of ``layout``, to requests.

    ``policies`` by feature, ``vocabularies`` and ``text``, which is what the option ids takes, are
    for the model's spec. ``settles`` does what NumPy does here otherwise.
    """

    def __init__(
        self,
        layout: JaggedLayout,
        policies: Sequence[Policy],
        vocabularies: Mapping[str, Vocabulary] | None = None,
        settles: SettlesIds | None = None,
    ) -> None:
        by_feature = dict(zip(layout.features, policies, strict=True))
        self.policies = {feature: policy.name for feature, policy in by_feature.items()}
        self.text = shown(by_feature)
        self.parsed = tuple(policies)
        self.vocabularies = vocabularies or {}
        self._layout = layout
        self._plain = all(policy.name == "reject" for policy in policies)
        self._names = [policy.name for policy in policies]
        self._rejects = np.array([policy.name == "reject" for policy in policies])
        self._drops = np.array([policy.name == "zero" for policy in policies])
        self._clamps = np.array([policy.name == "clamp" for policy in policies])
        self._rows = np.array([policy.row for policy in policies], np.int64)
        self._seeds = np.array([policy.seed for policy in policies], np.uint32)
        self._functions = {
            function: where
            for function in _HASHES
            if (where := np.array([_hashes(policy, function) for policy in policies])).any()
        }
        self._hashed = np.array([policy.name == "hash" for policy in policies])
        self._all_hashed = bool(self._hashed.all())
        self._settles = settles
        self._told = [_Told(*each) for each in zip(layout.features, self._names, strict=True)]
        self._runs = list(_runs(policies, layout.table_rows.tolist()))

    def check(self, request: InferRequest) -> Checked | None:
        """Return ``request`` with rows for ids, or None if its ids are rows as they are.

        Raises ServingError with INVALID_REQUEST as ``check_jagged`` does, which this is for
        tables that reject.
        """
        if self._plain and not self.vocabularies:
            check_jagged(self._layout, request)
            return None
        layout = self._layout
        lengths, values = request.inputs[layout.lengths], request.inputs[layout.values]
        hashes = bool(self._functions)
        if not hashes and self._is_plain(lengths, values):
            return None
        settled = self._settles(lengths, values) if self._settles is not None else None
        if settled is not None:
            return self._of_settled(request, settled)
        counts = ids_of_features(layout, lengths, values)
        hashed = self._hash(values, counts) if hashes else values
        if hashes and (self._all_hashed or in_range(layout, hashed, counts)):
            return self._checked(request, lengths, hashed, counts)
        features, positions = ids_outside(layout, hashed, counts)
        self._refuse(lengths, hashed, features, positions)
        found = missed(layout, features, self._names)
        rows = self._replaced(hashed, features, positions)
        dropped = positions[self._drops[features]]
        if dropped.size:
            lengths, rows = _without(lengths, rows, dropped)
        return self._checked(request, lengths, rows, counts, found)

    def _hash(self, values: Array, counts: Int64s) -> Int64s:
        """Return ``values``, those of tables that hash replaced by rows, in memory of their own."""
        rows = values.astype(np.int64)
        if len(self._runs) <= _FEW_RUNS:
            ends = [0, *np.cumsum(counts).tolist()]
            for run in self._runs:
                ids = rows[ends[run.first] : ends[run.end]]
                ids[:] = _HASHES[run.function](ids, run.seed, run.rows)
            return rows
        for function, features in self._functions.items():
            times = counts[features]
            seeds = self._seeds[features]
            seeds = seeds[:1] if (seeds == seeds[0]).all() else np.repeat(seeds, times)
            limits = np.repeat(self._layout.table_rows[features], times)
            if features.all():
                return _HASHES[function](rows, seeds, limits).astype(np.int64, copy=False)
            where = np.flatnonzero(np.repeat(features, counts))
            rows[where] = _HASHES[function](rows[where], seeds, limits)
        return rows

    def _is_plain(self, lengths: Array, values: Array) -> bool:
        """Return whether ids are rows as they are; the compiled library finds out for itself."""
        layout = self._layout
        sure = self._settles is None or values.size <= FEW or in_every_table(layout, values)
        return sure and is_valid(layout, lengths, values)

    def _of_settled(self, request: InferRequest, settled: Settled) -> Checked | None:
        told, outside = self._told, enumerate(settled.outside.tolist())
        found = tuple([told[at][count] for at, count in outside if count])
        if not found and not self._functions:
            return None
        return self._checked(request, settled.lengths, settled.values, settled.counts, found)

    def _refuse(self, lengths: Array, values: Array, features: Int64s, positions: Int64s) -> None:
        refused = self._rejects[features]
        if refused.any():
            position = int(positions[refused.argmax()])
            refusal = self._refusal(lengths, values, int(features[refused.argmax()]), position)
            refusal.missed = missed(self._layout, features[refused], self._names)
            raise refusal

    def _refusal(self, lengths: Array, values: Array, feature: int, position: int) -> ServingError:
        name = self._layout.features[feature]
        vocabulary = self.vocabularies.get(name)
        if vocabulary is None or values[position] != UNKNOWN:
            return outside(self._layout, lengths, values, position)
        bags = lengths.cumsum(dtype=np.int64)
        row = int(np.searchsorted(bags, position, side="right")) % lengths.shape[1]
        return invalid(
            f"{self._layout.values}: feature {name!r} row {row} has a text that its vocabulary "
            f"of {len(vocabulary.rows)} lacks"
        )

    def _replaced(self, values: Array, features: Int64s, positions: Int64s) -> Int64s:
        """Return ``values`` with default rows and clamped ids, in memory of their own."""
        rows = values.astype(np.int64)
        above = self._clamps[features] & (rows[positions] > 0)
        last = self._layout.table_rows[features] - 1
        rows[positions] = np.where(above, last, self._rows[features])
        return rows

    def _checked(
        self,
        request: InferRequest,
        lengths: Array,
        values: Array,
        counts: Int64s,
        found: tuple[Missed, ...] = (),
    ) -> Checked:
        layout = self._layout
        every: tuple[Missed, ...] = ()
        if self._functions:
            times = counts if self._all_hashed else np.where(self._hashed, counts, 0)
            every = _every(layout.features, times.tobytes())
        inputs = {**request.inputs, layout.lengths: lengths, layout.values: values}
        return Checked(request.with_inputs(inputs), found + every)


@functools.lru_cache(maxsize=256)
def _every(features: tuple[str, ...], counts: bytes) -> tuple[Missed, ...]:
    """Return that each feature's ids were hashed; requests of one size mostly have as many."""
    found = zip(features, np.frombuffer(counts, np.int64).tolist(), strict=True)
    return tuple(Missed(feature, "hash", count) for feature, count in found if count)


class _Told(dict[int, Missed]):
    """What is told of one feature, by how many of its ids had no row.

    The same few hold for most requests: to look one up takes a fifth as long as to make it.
    """

    def __init__(self, feature: str, policy: str) -> None:
        super().__init__()
        self._feature, self._policy = feature, policy

    def __missing__(self, count: int) -> Missed:
        told = Missed(self._feature, self._policy, count)
        if count <= _FEW_MISSED:
            self[count] = told
        return told


class _Run(NamedTuple):
    """Features ``first`` to ``end`` that are hashed alike."""

    first: int
    end: int
    function: Function
    seed: np.uint32
    rows: int


def _runs(policies: Sequence[Policy], table_rows: Sequence[int]) -> Iterator[_Run]:
    """Yield the longest runs of features of one hash and as many rows."""
    first = 0
    for (policy, rows), alike in groupby(zip(policies, table_rows, strict=True)):
        end = first + len(list(alike))
        if policy.name == "hash":
            yield _Run(first, end, policy.function, np.uint32(policy.seed), rows)
        first = end


def _hashes(policy: Policy, function: str) -> bool:
    return policy.name == "hash" and policy.function == function


def _without(lengths: Array, values: Int64s, dropped: Int64s) -> tuple[Int64s, Int64s]:
    """Return lengths and values without the ids at the positions ``dropped``."""
    ends = lengths.cumsum(dtype=np.int64)
    bags = np.searchsorted(ends, dropped, side="right")
    fewer = lengths.astype(np.int64)
    fewer -= np.bincount(bags, minlength=lengths.size).reshape(lengths.shape)
    kept = np.ones(values.size, np.bool_)
    kept[dropped] = False
    return fewer, values[kept]
