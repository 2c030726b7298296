"""Seeded requests that tell a right forward from a wrong one, and the comparison of two answers."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dlrm.gather import DENSE, IDS
from backends.torch_dlrm.weights import Dlrm
from scheduler.types import Array

# Runs one forward: inputs as the artifact takes them (lengths flat), one score a row.
Forward = Callable[[dict[str, Array]], Array]
Scores = npt.NDArray[np.float64]

TOLERANCE = 1e-6
# How many times as far apart the same forward may be where other kernels add up in another order:
# on these probes, of long bags, the artifact's own scores are up to 1.4e-6 from float64's.
MARGIN = 4
# Inputs of this size make sums whose last digits depend on the order of adding up.
_LARGE, _LARGE_TOLERANCE = 100.0, 1e-3
_ROWS = (0, 1, 2, 7, 64, 129, 400)
# Empty, one-hot and multi-hot bags, and one that is longer than any unrolled loop.
_BAGS = (0, 1, 1, 1, 2, 5, 40)
_SENSED_ROWS, _SENSED_BAG = 32, 40
# A few units in the last place of a score.
_ROUNDING = 2.5e-7
_MOST_INT32 = 2**31


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One request's inputs, and how far two forwards may differ on it."""

    inputs: dict[str, Array]
    tolerance: float = TOLERANCE

    @property
    def features(self) -> int:
        """How many features have bags in each row; there is at least one row."""
        return self.inputs[f"{IDS}.lengths"].size // len(self.inputs[DENSE])


def make_probes(dlrm: Dlrm) -> list[Probe]:
    """Draw the probes for a model of these sizes: the same ones whenever it is called."""
    random = np.random.default_rng(20261129)
    probes = [_probe(dlrm, random, _bags(dlrm, random, rows)) for rows in _ROWS]
    features = dlrm.tables.features
    probes.append(_probe(dlrm, random, np.zeros((features, 5), np.int32)))
    probes.append(_probe(dlrm, random, _bags(dlrm, random, 33), scale=_LARGE))
    return probes


def wider(probes: Sequence[Probe]) -> list[Probe]:
    """Return the probes as another order of adding up may answer them."""
    return [replace(probe, tolerance=MARGIN * probe.tolerance) for probe in probes]


def _bags(dlrm: Dlrm, random: np.random.Generator, rows: int) -> npt.NDArray[np.int32]:
    return random.choice(np.asarray(_BAGS, np.int32), (dlrm.tables.features, rows))


def _probe(
    dlrm: Dlrm, random: np.random.Generator, lengths: npt.NDArray[np.int32], scale: float = 1.0
) -> Probe:
    """Return a probe with ``lengths``; each table's first and last id occur where there is room."""
    limits = dlrm.tables.rows
    ids = [
        _ids(random, int(limit), int(count))
        for limit, count in zip(limits, lengths.sum(axis=1), strict=True)
    ]
    dense = random.standard_normal((lengths.shape[1], dlrm.dense_features), np.float32) * scale
    kind = np.int64 if limits.max() > _MOST_INT32 else np.int32
    inputs: dict[str, Array] = {
        DENSE: dense.astype(np.float32),
        f"{IDS}.lengths": lengths.reshape(-1),
        f"{IDS}.values": np.concatenate(ids).astype(kind),
    }
    return Probe(inputs, TOLERANCE if scale == 1.0 else _LARGE_TOLERANCE)


def _ids(random: np.random.Generator, limit: int, count: int) -> npt.NDArray[np.int64]:
    ids = random.integers(0, limit, count)
    if count >= 2:
        ids[random.choice(count, 2, replace=False)] = (0, limit - 1)
    return ids


def digest(probes: Sequence[Probe]) -> str:
    """Return a hash of all inputs: answers are worth something for these probes only."""
    total = hashlib.sha256()
    for probe in probes:
        for name, array in sorted(probe.inputs.items()):
            total.update(f"{name} {array.dtype} {array.shape}".encode())
            total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def doubt(dlrm: Dlrm, ours: Forward, probes: Sequence[Probe], theirs: Sequence[Array]) -> str:
    """Return why ``ours`` may not stand for what gave ``theirs``, or "".

    ``theirs`` are the answers to ``probes``.
    """
    worst = 0.0
    for probe, expected in zip(probes, theirs, strict=True):
        gap = difference(ours(probe.inputs), expected)
        if not gap <= probe.tolerance:
            rows = len(probe.inputs[DENSE])
            return f"{rows} probe rows differ by {gap:.3g}, more than {probe.tolerance:g}"
        if probe.tolerance < _LARGE_TOLERANCE:
            worst = max(worst, gap)
    return _blindness(dlrm, ours, worst)


def difference(left: Array, right: Array) -> float:
    """Return the largest difference; infinite if shapes differ or one is no number."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return float("inf")
    ours, theirs = left.astype(np.float64), right.astype(np.float64)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return float("inf")
    return float(np.abs(ours - theirs).max(initial=0.0))


def _blindness(dlrm: Dlrm, forward: Forward, worst: float) -> str:
    """Return which feature's table the comparison cannot have seen, or "".

    Emptying a feature's bags must move some score by more than the largest difference found, and
    by more than rounding: otherwise a wrong table could have passed. A table of zeros (TorchRec's
    own packager leaves them) is excused: taken for another one, it would have shown as that one.
    """
    least = max(4 * worst, _ROUNDING)
    random = np.random.default_rng(1)
    lengths = np.full((dlrm.tables.features, _SENSED_ROWS), _SENSED_BAG, np.int32)
    whole = _probe(dlrm, random, lengths).inputs
    expected = forward(whole)
    for feature in range(dlrm.tables.features):
        if dlrm.tables.is_zero(feature):
            continue
        if difference(forward(_without(whole, lengths, feature)), expected) <= least:
            return f"no score depends visibly on feature {feature}: a wrong table could pass"
    return ""


def _without(
    inputs: dict[str, Array], lengths: npt.NDArray[np.int32], feature: int
) -> dict[str, Array]:
    """Return the inputs with every bag of one feature emptied."""
    fewer = lengths.copy()
    fewer[feature] = 0
    counts = lengths.sum(axis=1)
    end = int(counts[: feature + 1].sum())
    gone = slice(end - int(counts[feature]), end)
    values: npt.NDArray[Any] = np.delete(inputs[f"{IDS}.values"], gone)
    return {**inputs, f"{IDS}.lengths": fewer.reshape(-1), f"{IDS}.values": values}
