"""``python -m loadtest.gpu_check.path OPTIONS GOLDEN SECONDS``: one way to serve, in one process.

Prints one JSON object: the largest difference from the CPU's scores, what was chosen, and how fast
it answers through the engine, without a wire.
"""

import asyncio
import importlib
import itertools
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from backends.dlrm.manifest import GOLDEN_SCORES
from loadtest.gpu_check.memory import used_mib
from loadtest.lab.closed_loop import run
from loadtest.lab.stats import percentile
from scheduler.backend import Backend
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.types import Array, Batch, InferRequest

# By name, as the plug-in it is: this package imports no PyTorch, and need not be installed.
_BACKEND = ("backends.torch_dlrm.backend", "TorchDlrmBackend")
_ROWS = (1, 10, 100)
_WARM_UP_S, _DISTINCT = 0.3, 200
_COPIES = (1, 2, 5, 16)


def main(argv: Sequence[str]) -> int:
    """Measure; return 0 if there are figures, whatever they say."""
    options, golden, seconds = json.loads(argv[0]), Path(argv[1]), float(argv[2])
    before = used_mib()
    began_s = time.perf_counter()
    backend = getattr(importlib.import_module(_BACKEND[0]), _BACKEND[1])
    model: Backend = backend(backend.Options(**options))
    model.load()
    load_s = time.perf_counter() - began_s
    properties = model.spec.properties
    wanted = (
        "plan",
        "plan_reason",
        "interaction",
        "interaction_reason",
        "graphs",
        "tables",
        "lookup",
    )
    figures: dict[str, Any] = {
        **{key: properties[key] for key in wanted if key in properties},
        "load_s": load_s,
        **parity(model, golden),
        **asyncio.run(speed(model, seconds)),
    }
    if math.isfinite(used := used_mib() - before):
        figures["gpu_mib"] = used
    print(json.dumps(figures))
    return 0


def parity(model: Backend, golden: Path) -> dict[str, float]:
    """Return how far the golden scores are from the CPU's, in batches of several sizes."""
    with np.load(golden / "golden.npz") as file:
        arrays = {name: file[name] for name in file.files}
    inputs = {k: v for k, v in arrays.items() if not k.startswith(("fp32.", *GOLDEN_SCORES))}
    scores = np.concatenate([v.ravel() for k, v in arrays.items() if k.startswith(GOLDEN_SCORES)])
    request = InferRequest("", len(scores), inputs)
    gaps = []
    for copies in _COPIES:
        if copies * len(scores) <= model.spec.max_batch_rows:
            (ours,) = model.prepare(Batch((request,) * copies))().values()
            gaps.append(float(np.abs(np.asarray(ours, float) - np.tile(scores, copies)).max()))
    return {"error": max(gaps), "golden_std": float(scores.std())}


async def speed(model: Backend, seconds: float) -> dict[str, float]:
    """Return the median latency of one request at a time, and the samples a second of sixteen."""
    engine = Engine(SchedulerOptions(), Observer())
    await engine.load(_Loaded(model))
    engine.open()
    figures = {}
    for rows in _ROWS:
        turns = itertools.cycle(_requests(model, rows))

        def ask(turns: Any = turns) -> Any:
            return engine.infer(next(turns))

        for in_flight in (1, 16):
            await run(ask, in_flight, _WARM_UP_S)
            closed = await run(ask, in_flight, seconds)
            if in_flight == 1:
                figures[f"p50_us_{rows}"] = 1e6 * percentile(closed.latencies_s, 0.5)
            else:
                figures[f"samples_s_{rows}"] = rows * closed.rate
    await engine.close(grace_s=5.0)
    return figures


class _Loaded:
    """The model, which is loaded already."""

    def __init__(self, model: Backend) -> None:
        self.spec, self.lanes = model.spec, model.lanes
        self.check, self.prepare, self.close = model.check, model.prepare, model.close

    def load(self) -> None:
        """Do nothing."""


def _requests(model: Backend, rows: int) -> list[InferRequest]:
    """Return distinct requests, one id a bag."""
    dense, lengths, values = model.spec.inputs
    random = np.random.default_rng(rows)
    limits = np.array(model.spec.properties["table_rows"].split(), np.int64)
    width = dense.shape[1]
    assert isinstance(width, int)
    found = []
    for _ in range(_DISTINCT):
        ids = (random.random((len(limits), rows)) * limits[:, None]).astype(np.int64)
        inputs: dict[str, Array] = {
            dense.name: random.standard_normal((rows, width), np.float32),
            lengths.name: np.ones((len(limits), rows), np.int64),
            values.name: ids.reshape(-1),
        }
        found.append(InferRequest(model.spec.name, rows, inputs))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
