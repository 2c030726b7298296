"""``python -m tests.numerics.table_ranges``: how far INT8 tables are from FP32, by a row's range.

Each row's 255 steps reach from its least to its greatest value, as FBGEMM has it; or over the range
among 81 with the least squared error; or as FBGEMM's, with scale and bias in FP32 instead of FP16.
Everything after the lookup is float64. Needs torchrec.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import product

import numpy as np
import numpy.typing as npt

from backends.dlrm.forward.model import Dlrm, Linear, Table
from backends.dlrm.gather import DENSE
from backends.dlrm.stored_rows import stored_rows
from backends.native_dlrm.reference import Reference
from backends.torch_dlrm.export.golden import LENGTHS, ROWS, VALUES, golden_inputs
from backends.torch_dlrm.export.model import build, seed_weights
from backends.torch_dlrm.export.presets import PRESETS, DlrmShape
from scheduler.types import Array

Wide = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
_BAGS = "sparse_arch.embedding_bag_collection.embedding_bags.t_{}.weight"
_LARGEST = 255
_MARGINS = np.linspace(-0.01, 0.03, 9)


def main() -> None:
    """Print a Markdown table."""
    shape = PRESETS["reference"]
    golden = golden_inputs(shape, ROWS, 0)
    model = build(shape)
    seed_weights(model, 0, shape, golden)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    sys.stdout.write(
        "| requests | deviation | FBGEMM | best range | FP32 scale |\n|---|---|---|---|---|\n"
    )
    for name, inputs in _requests(shape, golden):
        exact = _scores(state, shape, inputs, lambda rows: rows)
        line = [name, f"{exact.std():.3f}"]
        for stored in (_by_fbgemm, _best, _by_fp32_scale):
            gap = np.abs(_scores(state, shape, inputs, stored) - exact)
            line.append(f"{gap.max():.1e}, {gap.mean():.1e}")
        sys.stdout.write(f"| {' | '.join(line)} |\n")


def _requests(shape: DlrmShape, golden: dict[str, Array]) -> Iterator[tuple[str, dict[str, Array]]]:
    yield "golden batch", golden
    yield "1,280 such rows", golden_inputs(shape, 1280, 5)
    for rows in (128, 1280):
        random, features = np.random.default_rng(rows // 1000 + 1), len(shape.features)
        ids = random.integers(0, min(shape.table_rows), features * rows)
        dense = random.standard_normal((rows, len(shape.dense_names)), np.float32)
        lengths = np.ones((features, rows), np.int64)
        yield f"{rows} rows, one id a bag", {DENSE: dense, LENGTHS: lengths, VALUES: ids}


def _scores(
    state: Mapping[str, Array],
    shape: DlrmShape,
    inputs: dict[str, Array],
    stored: Callable[[Floats], Floats],
) -> Wide:
    """Return the scores of a model that has only the rows that are looked up, each once an id."""
    counts = inputs[LENGTHS].sum(axis=1)
    parts = np.split(inputs[VALUES], np.cumsum(counts)[:-1])
    tables, places = [], []
    for feature, ids in zip(shape.features, parts, strict=True):
        rows = stored(state[_BAGS.format(feature)][ids]).astype(np.float32)
        tables.append(Table(feature, "fp32", shape.dim, rows.view(np.uint8)))
        places.append(np.arange(len(ids)))
    dense = [
        _linear(state, f"dense_arch.model._mlp.{n}._linear") for n in range(len(shape.dense_layers))
    ]
    over = [
        _linear(state, f"over_arch.model.0._mlp.{n}._linear")
        for n in range(len(shape.over_layers) - 1)
    ]
    over.append(_linear(state, "over_arch.model.1", relu=False))
    order = tuple(range(len(tables)))
    nothing = np.empty(0, np.uint8)
    dlrm = Dlrm(tuple(tables), order, tuple(dense), tuple(over), True, "", nothing)
    lengths = inputs[LENGTHS].reshape(-1)
    return Reference(dlrm).run({**inputs, LENGTHS: lengths, VALUES: np.concatenate(places)})


def _linear(state: Mapping[str, Array], name: str, *, relu: bool = True) -> Linear:
    return Linear(state[f"{name}.weight"], state[f"{name}.bias"], relu)  # type: ignore[arg-type]


def _by_fbgemm(rows: Floats) -> Floats:
    stored = stored_rows("int8", rows, 4 + rows.shape[1])
    halves = np.ascontiguousarray(stored[:, :4]).view(np.float16).astype(np.float32)
    return stored[:, 4:] * halves[:, :1] + halves[:, 1:]


def _by_fp32_scale(rows: Floats) -> Floats:
    low = rows.min(axis=1, keepdims=True)
    scale = (rows.max(axis=1, keepdims=True) - low) / np.float32(_LARGEST)
    restored: Floats = np.rint((rows - low) / scale) * scale + low
    return restored


def _best(rows: Floats) -> Floats:
    low, high = rows.min(axis=1), rows.max(axis=1)
    best, errors = np.zeros_like(rows), np.full(len(rows), np.inf)
    for below, above in product(_MARGINS, _MARGINS):
        bias = (low + below * (high - low)).astype(np.float16).astype(np.float32)
        spread = high - above * (high - low) - bias
        scale = (spread / _LARGEST).astype(np.float16).astype(np.float32)
        codes = np.clip(np.rint((rows - bias[:, None]) / scale[:, None]), 0, _LARGEST)
        meant = codes * scale[:, None] + bias[:, None]
        error = np.square(meant - rows).sum(axis=1)
        better = error < errors
        errors[better], best[better] = error[better], meant[better]
    return best


if __name__ == "__main__":
    main()
