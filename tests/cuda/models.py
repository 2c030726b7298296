"""DLRMs of random INT8 rows, made without an artifact, and their scores on the CPU."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from backends.dlrm.gather import DENSE, IDS
from backends.torch_dlrm.gpu.load import Proof
from backends.torch_dlrm.lean import Lean
from backends.torch_dlrm.probes import MARGIN, TOLERANCE, doubt, make_probes, wider
from backends.torch_dlrm.weights import Dlrm, Layer, Tables
from scheduler.types import Array, Batch, InferRequest

OUTPUT = "default"
BOUND = MARGIN * TOLERANCE
_INT8 = 2  # fbgemm's SparseType
_HEADER_BYTES = 4


def make_model(features: int = 26, dim: int = 64, rows: int = 1000) -> Dlrm:
    """Return a model of the reference's shape with small tables and scores that spread."""
    random = np.random.default_rng(5)
    header = np.empty((features, rows, 2), np.float16)
    header[..., 0], header[..., 1] = 0.8 / 255 / dim**0.25, -0.4 / dim**0.25
    values = random.integers(0, 256, (features, rows, dim), np.uint8)
    block = np.concatenate([header.view(np.uint8), values], axis=2)
    width = dim + _HEADER_BYTES
    tables = Tables(
        block=block.reshape(-1),
        starts=np.arange(features, dtype=np.int64) * rows * width,
        types=np.full(features, _INT8, np.uint8),
        rows=np.full(features, rows, np.int64),
        dim=dim,
        largest=(0, 0, dim, 0, 0),
        pooling=0,
        row_alignment=1,
    )
    pairs = np.stack(np.triu_indices(features + 1, 1)).astype(np.int64)
    joined = dim + pairs.shape[1]
    dense, over = _chain(random, (13, 512, 256, dim)), _chain(random, (joined, 512, 256, 1))
    # Scores near 0.5 all of them would hide what is wrong.
    last = Layer(over[-1].weight * 8, over[-1].bias)
    return Dlrm(dense, (*over[:-1], last), tables, pairs)


def _chain(random: np.random.Generator, widths: tuple[int, ...]) -> tuple[Layer, ...]:
    return tuple(
        Layer(
            (random.standard_normal((outputs, inputs)) / inputs**0.5).astype(np.float32),
            np.zeros(outputs, np.float32),
        )
        for inputs, outputs in pairwise(widths)
    )


def on_cpu(dlrm: Dlrm) -> Callable[[dict[str, Array]], Array]:
    """Return the lean plan of the CPU: inputs as probes have them -> scores."""
    lean = Lean(dlrm, OUTPUT, copy=True)

    def forward(inputs: dict[str, Array]) -> Array:
        with torch.inference_mode():
            scores: Array = lean({name: torch.from_numpy(one) for name, one in inputs.items()})[
                OUTPUT
            ].numpy()
        return scores

    return forward


def prove(dlrm: Dlrm) -> Proof:
    """Return the proof that something scores as the CPU's lean plan does."""
    probes, forward = wider(make_probes(dlrm)), on_cpu(dlrm)
    return partial(doubt, dlrm, probes=probes, theirs=[forward(probe.inputs) for probe in probes])


def make_inputs(dlrm: Dlrm, rows: int, seed: int, longest: int = 4) -> dict[str, Array]:
    """Return inputs with bags of 0 to ``longest`` ids, lengths flat."""
    random, tables = np.random.default_rng(seed), dlrm.tables
    lengths = random.integers(0, longest + 1, tables.features * rows, np.int32)
    return {
        DENSE: random.standard_normal((rows, dlrm.dense_features), np.float32),
        f"{IDS}.lengths": lengths,
        f"{IDS}.values": random.integers(0, int(tables.rows[0]), int(lengths.sum()), np.int32),
    }


def as_batch(inputs: dict[str, Array]) -> Batch:
    """Return one request of them, as the scheduler would give it."""
    rows = len(inputs[DENSE])
    name = f"{IDS}.lengths"
    shaped = inputs[name].reshape(-1, rows) if rows else inputs[name].reshape(1, 0)
    return Batch((InferRequest("", rows, {**inputs, name: shaped}),))
