"""One ranking request in each protocol's bytes: spelled out, and with a context given once."""

from dataclasses import dataclass

import numpy as np

from loadtest.lab.bodies import (
    DENSE,
    LENGTHS,
    VALUES,
    Body,
    Layout,
    Tensors,
    bags,
    binary_body,
    columnar,
    json_body,
    pairs,
    protobuf_body,
    row_wise,
)
from scheduler.types import Array, ModelSpec


@dataclass(frozen=True, slots=True)
class Shape:
    """What the context has: the leading columns and features, the first of them long bags."""

    dense: int = 8
    features: int = 16
    histories: int = 4
    history_ids: int = 50


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """One request in TorchRec's tensors: the context, the candidates, and both spelled out."""

    spec: ModelSpec
    rows: int
    shape: Shape
    context: Tensors
    candidates: Tensors
    whole: Tensors


def draw_parts(spec: ModelSpec, rows: int, shape: Shape, seed: int) -> Parts:
    """Return a random request: one id a bag but for the histories, int32 ids under 100,000."""
    rng = np.random.default_rng(seed)
    labels = _labels(spec)
    sizes = [shape.history_ids] * shape.histories + [1] * (shape.features - shape.histories)
    lengths = np.array(sizes, np.int32)[:, None]
    shared = rng.integers(0, 100_000, lengths.sum(), np.int32)
    left = len(labels) - shape.features
    own = rng.integers(0, 100_000, left * rows, np.int32)
    dense = rng.standard_normal((1, 13), np.float32)
    own_dense = rng.standard_normal((rows, 13 - shape.dense), np.float32)
    own_lengths = np.ones((left, rows), np.int32)
    histories = np.split(shared, np.cumsum(sizes)[:-1])
    context = {DENSE: dense[:, : shape.dense], LENGTHS: lengths, VALUES: shared}
    whole = {
        DENSE: np.hstack([np.tile(context[DENSE], (rows, 1)), own_dense]),
        LENGTHS: np.vstack([np.tile(lengths, rows), own_lengths]),
        VALUES: np.concatenate([*(np.tile(bag, rows) for bag in histories), own]),
    }
    candidates = {DENSE: own_dense, LENGTHS: own_lengths, VALUES: own}
    return Parts(spec, rows, shape, context, candidates, whole)


def bodies(parts: Parts) -> dict[str, tuple[Body, Body]]:
    """Return each form of the request: spelled out, and with a context."""
    labels, count = _labels(parts.spec), parts.shape.features
    user = _renamed(parts.context)
    user_pairs = _renamed(pairs(parts.context, labels[:count]))
    own_pairs = pairs(parts.candidates, labels[count:])
    whole_pairs = pairs(parts.whole, labels)
    ways = {
        "TorchRec's tensors": (parts.whole, {**user, **parts.candidates}),
        "pairs": (whole_pairs, {**user_pairs, **own_pairs}),
    }
    forms = {
        "JSON, row-wise": _documents(parts, row_wise),
        "JSON, columnar": _documents(parts, columnar),
    }
    for name, (spelled_out, with_context) in ways.items():
        forms[f"OIP binary, {name}"] = (
            binary_body(spelled_out, parts.spec), binary_body(with_context, parts.spec)
        )  # fmt: skip
        forms[f"OIP gRPC, {name}"] = (
            protobuf_body(spelled_out, parts.spec), protobuf_body(with_context, parts.spec)
        )  # fmt: skip
    return forms


def _labels(spec: ModelSpec) -> tuple[str, ...]:
    lengths = spec.input(LENGTHS)
    return lengths.labels if lengths else ()


def _renamed(tensors: Tensors) -> dict[str, Array]:
    return {f"context.{name}": array for name, array in tensors.items()}


def _documents(parts: Parts, layout: Layout) -> tuple[Body, Body]:
    labels, count = _labels(parts.spec), parts.shape.features
    shared = {label: ids for label, (_, ids) in bags(parts.context, labels[:count]).items()}
    context = {DENSE: parts.context[DENSE][0].copy(), "id_list_features": shared}
    with_context = {"context": context, **layout(parts.candidates, labels[count:])}
    return json_body(layout(parts.whole, labels), parts.spec), json_body(with_context, parts.spec)
