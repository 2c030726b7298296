"""Seeded requests for one model, serialised before the run so that it measures the server."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest.encodings import DENSE, LENGTHS, NO_CONTEXT, VALUES, Context, Encoding, encode
from scheduler.types import Array

# Scatters ids over a table; a prime above any table's rows, so that no two ids meet.
_SCATTER = 2_654_435_761
_MOST_POOLED = 1000
_TAIL = 1.5


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a request must look like: dense features, and each id feature's table rows."""

    dense_features: int
    features: tuple[str, ...]
    table_rows: tuple[int, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Pooling:
    """How many ids a bag has: ``one``, or ``geometric`` or ``heavy`` with a ``mean``."""

    kind: str = "one"
    mean: float = 1.0

    def lengths(self, size: tuple[int, int], rng: np.random.Generator) -> Array:
        """Return int32 lengths, each 1 at least and 1000 at most."""
        if self.kind == "one":
            return np.ones(size, np.int32)
        if self.kind == "geometric":
            drawn = rng.geometric(1 / self.mean, size).astype(np.float64)
        else:
            # Pareto (Lomax) with exponent 1.5: the mean is finite, the variance is not.
            drawn = 1 + np.round(rng.pareto(_TAIL, size) * (_TAIL - 1) * (self.mean - 1))
        return np.minimum(drawn, _MOST_POOLED).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Mix:
    """What requests are like: rows and how often, pooling, and Zipf's exponent of the ids.

    With a ``context`` the rows of a request are candidates of one user.
    """

    rows: tuple[tuple[int, float], ...] = ((100, 1.0),)
    pooling: Pooling = Pooling()
    zipf: float = 0.0
    context: Context = NO_CONTEXT

    def __str__(self) -> str:
        if len(self.rows) == 1:
            return str(self.rows[0][0])
        return "+".join(f"{rows}:{weight:g}" for rows, weight in self.rows)


def parse_rows(text: str) -> tuple[tuple[int, float], ...]:
    """Read ``100``, or a mix ``1:50+10:30+100:20`` of rows and weights. Raises ValueError."""
    parts = [part.partition(":") for part in text.split("+")]
    mixed = tuple((int(rows), float(weight or 1)) for rows, _, weight in parts)
    if any(rows < 1 or not 0 < weight < np.inf for rows, weight in mixed):
        raise ValueError(f"rows and weights must be above 0, got {text!r}")
    return mixed


def parse_pooling(text: str) -> Pooling:
    """Read ``one``, ``geometric:MEAN`` or ``heavy:MEAN``. Raises ValueError."""
    kind, _, mean = text.partition(":")
    pooling = Pooling(kind, float(mean or 1))
    if kind not in ("one", "geometric", "heavy") or not 1 <= pooling.mean <= _MOST_POOLED:
        raise ValueError(f"expected one, geometric:MEAN or heavy:MEAN (1 to 1000), got {text!r}")
    return pooling


def parse_context(text: str) -> Context:
    """Read ``8+16``, the user's dense columns and id features. Raises ValueError."""
    columns, _, features = text.partition("+")
    context = Context(int(columns), int(features or 0))
    if min(context.columns, context.features) < 0 or context == NO_CONTEXT:
        raise ValueError(f"expected COLUMNS+FEATURES of the user, got {text!r}")
    return context


def read_shape(artifact: Path) -> ModelShape:
    """Read the shape from the manifest in an artifact folder. Raises OSError or KeyError."""
    manifest = json.loads((artifact / "manifest.json").read_text(encoding="utf-8"))
    tables = manifest["tables"]
    return ModelShape(
        dense_features=len(manifest["dense_names"]),
        features=tuple(table["feature"] for table in tables),
        table_rows=tuple(table["rows"] for table in tables),
        name=str(manifest.get("name", "")),
    )


def draws(
    shape: ModelShape, mix: Mix, count: int, seed: int
) -> Iterator[tuple[int, dict[str, Array]]]:
    """Yield rows and tensors of ``count`` requests, the same for the same seed."""
    rng = np.random.default_rng(seed)
    sizes = np.array([rows for rows, _ in mix.rows])
    weights = np.array([weight for _, weight in mix.rows])
    for _ in range(count):
        one = len(sizes) == 1
        rows = int(sizes[0] if one else rng.choice(sizes, p=weights / weights.sum()))
        yield rows, draw(shape, rows, rng, mix)


def make_bodies(
    shape: ModelShape, rows: int, count: int, seed: int, encoding: Encoding
) -> list[bytes]:
    """Return ``count`` distinct requests of ``rows`` rows, one uniform id a feature and row."""
    made = draws(shape, Mix(((rows, 1.0),)), count, seed)
    return [encode(encoding, shape.name, shape.features, inputs) for _, inputs in made]


def draw(
    shape: ModelShape, rows: int, rng: np.random.Generator, mix: Mix | None = None
) -> dict[str, Array]:
    """Return the tensors of one random request, int32 ids; one id a bag unless ``mix`` says.

    A context is spelled out: the user's part is the same in every row.
    """
    mix = mix or Mix()
    lengths = mix.pooling.lengths((len(shape.features), rows), rng)
    user = mix.context
    lengths[: user.features] = lengths[: user.features, :1]
    limits = np.repeat(np.array(shape.table_rows, np.int64), lengths.sum(axis=1))
    values = _ids(limits, mix.zipf, rng)
    dense = rng.standard_normal((rows, shape.dense_features), np.float32)
    dense[:, : user.columns] = dense[:1, : user.columns]
    place = 0
    for bag in lengths[: user.features, 0].tolist():
        values[place : place + bag * rows] = np.tile(values[place : place + bag], rows)
        place += bag * rows
    return {VALUES: values, DENSE: dense, LENGTHS: lengths}


def _ids(limits: Array, exponent: float, rng: np.random.Generator) -> Array:
    """Return an id below each of ``limits``; the k-th most popular about 1 / k**exponent."""
    share = rng.random(len(limits))
    if exponent == 0:
        return np.multiply(share, limits).astype(np.int32)
    # The inverse of the distribution function of the continuous law on 1 .. limit + 1.
    most = np.log1p(limits.astype(np.float64))
    power = 1.0 - exponent
    if abs(power) < 1e-9:
        ranks = np.exp(share * most)
    else:
        ranks = np.exp(np.log1p(share * np.expm1(power * most)) / power)
    popular = np.minimum(ranks.astype(np.int64), limits) - 1
    scattered: Array = (popular * _SCATTER % limits).astype(np.int32)
    return scattered
