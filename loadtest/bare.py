"""The floor of a served latency: the backend called directly, in this process, on one thread."""

import time
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np

from loadtest.closed import Failures, Result
from loadtest.workload import ModelShape, draw
from scheduler.backend import Backend
from scheduler.types import Batch, InferRequest


def load(artifact: Path, backend: str) -> Backend:
    """Load ``artifact`` with the backend plug-in called ``backend``. Raises LoadError."""
    plugin = entry_points(group="narsil.backends")[backend].load()
    loaded: Backend = plugin(plugin.Options(path=str(artifact)))
    loaded.load()
    return loaded


def run(backend: Backend, shape: ModelShape, rows: int, count: int, measure_s: float) -> Result:
    """Time one forward after another over ``count`` distinct batches of ``rows`` rows."""
    rng = np.random.default_rng(0)
    batches = [
        Batch((InferRequest("", rows, draw(shape, rows, rng)),)) for _ in range(min(count, 200))
    ]
    for batch in batches:
        backend.prepare(batch)()
    latencies: list[float] = []
    begin_s = time.perf_counter()
    while (started_s := time.perf_counter()) < begin_s + measure_s:
        backend.prepare(batches[len(latencies) % len(batches)])()
        latencies.append(time.perf_counter() - started_s)
    return Result(np.array(latencies), time.perf_counter() - begin_s, Failures())
