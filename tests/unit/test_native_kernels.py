"""Rows of every kind, pooled and interacted, against the same in float64."""

from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest

from backends.dlrm.gather import DENSE
from backends.native_dlrm.jit import keep_compiled_in
from backends.native_dlrm.model import Bytes, Dlrm, Kind, Linear, Table
from scheduler.types import Array

ROWS, DIM = 50, 6
Wide = npt.NDArray[np.float64]


def make_rows(kind: Kind, random: np.random.Generator, padding: int) -> tuple[Bytes, Wide]:
    """Return stored rows and what they mean."""
    if kind == "int8":
        scale_bias = random.uniform(-0.01, 0.01, (ROWS, 2)).astype(np.float16)
        quantised = random.integers(0, 256, (ROWS, DIM), np.uint8)
        stored = np.concatenate([scale_bias.view(np.uint8), quantised], axis=1)
        wide = scale_bias.astype(np.float64)
        meaning = quantised * wide[:, :1] + wide[:, 1:]
    else:
        dtype = np.float16 if kind == "fp16" else np.float32
        values = random.standard_normal((ROWS, DIM)).astype(dtype)
        stored, meaning = values.view(np.uint8), values.astype(np.float64)
    return np.pad(stored, ((0, 0), (0, padding))), meaning


def make_layer(random: np.random.Generator, inputs: int, outputs: int, *, relu: bool) -> Linear:
    weight, bias = random.standard_normal((outputs, inputs)), random.standard_normal(outputs)
    return Linear((weight / 4).astype(np.float32), (bias / 4).astype(np.float32), relu)


def wide_layers(values: Wide, layers: tuple[Linear, ...]) -> Wide:
    for layer in layers:
        values = values @ layer.weight.T.astype(np.float64) + layer.bias
        values = np.maximum(values, 0) if layer.relu else values
    return values


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("sigmoid", [False, True])
def test_a_forward_is_that_of_float64(
    kernel_cache: Path, kind: Kind, mean: bool, sigmoid: bool
) -> None:
    keep_compiled_in(kernel_cache)
    from backends.native_dlrm.forward import Forward, Weights  # noqa: PLC0415

    random = np.random.default_rng(7)
    stored = [make_rows(kind, random, padding) for padding in (0, 3, 16)]
    storage = np.concatenate([rows.reshape(-1) for rows, _ in stored])
    storage.flags.writeable = False  # like a mapped file
    starts = np.cumsum([0, *(rows.size for rows, _ in stored)])
    data = [
        storage[start : start + rows.size].reshape(rows.shape)
        for start, (rows, _) in zip(starts, stored, strict=False)
    ]
    tables = tuple(Table(f"f{n}", kind, DIM, rows, mean) for n, rows in enumerate(data))
    dense = (make_layer(random, 4, 5, relu=True), make_layer(random, 5, DIM, relu=False))
    over = (make_layer(random, DIM + 6, 8, relu=True), make_layer(random, 8, 1, relu=False))
    # The vectors interact in another order than the wire has them.
    dlrm = Dlrm(tables, (2, 0, 1), dense, over, sigmoid, "default", storage)

    rows = 300
    lengths = random.integers(0, 4, (3, rows)).astype(np.int32)
    ids = random.integers(0, ROWS, int(lengths.sum())).astype(np.int32)
    inputs: dict[str, Array] = {
        DENSE: random.standard_normal((rows, 4)).astype(np.float32),
        "id_list_features.lengths": lengths.reshape(-1),
        "id_list_features.values": ids,
    }
    bags = np.split(ids, np.cumsum(lengths)[:-1])
    hidden = wide_layers(inputs[DENSE].astype(np.float64), dense)
    vectors = np.zeros((rows, 4, DIM))
    vectors[:, 0] = hidden
    for place, table in enumerate((2, 0, 1), 1):
        for row in range(rows):
            bag = stored[table][1][bags[table * rows + row]]
            pooled = bag.sum(axis=0)
            vectors[row, place] = pooled / max(len(bag), 1) if mean else pooled
    products = np.einsum("rid,rjd->rij", vectors, vectors)
    left, right = np.triu_indices(4, 1)
    logits = wide_layers(np.concatenate([hidden, products[:, left, right]], axis=1), over)[:, 0]
    expected = 1 / (1 + np.exp(-logits)) if sigmoid else logits
    scores = Forward(Weights(dlrm)).run(inputs)
    tolerance = 1e-6 if sigmoid else 5e-5 * max(1.0, float(np.abs(logits).max()))
    assert np.std(expected) > 0.05
    assert np.abs(scores - expected).max() <= tolerance
