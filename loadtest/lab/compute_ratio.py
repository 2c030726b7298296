"""Time two backends beside each other, in one process: python -m loadtest.lab.compute_ratio MODEL.

Prints, for each batch size, the median time of a forward (gather included) by each, the ratio
native_dlrm / torch_dlrm of each round's medians, and how much two lanes do of what one does.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from scheduler.backend import Backend
from scheduler.types import Array, Batch, InferRequest, ModelSpec

_NAMES = ("torch_dlrm", "native_dlrm")
_ROUNDS, _BATCHES = 9, 16
_CALLS = {1: 300, 100: 40, 1600: 4}
_LANES_ROWS, _LANES_S = 100, 1.5


def _load(name: str, path: str) -> Backend:
    plugin: Any = entry_points(group="narsil.backends")[name].load()
    threads = {"intra_op_threads": 1} if name == "torch_dlrm" else {}
    backend: Backend = plugin(plugin.Options(path, lanes=2, **threads))
    backend.load()
    return backend


def _batches(spec: ModelSpec, rows: int) -> list[Batch]:
    """Draw one id a bag, other ids in each batch: what is looked up is seldom in a cache."""
    random = np.random.default_rng(rows)
    limits = np.array(spec.properties["table_rows"].split(), np.int64)
    dense, lengths, values = spec.inputs
    made = []
    for _ in range(_BATCHES):
        ids = random.integers(0, np.repeat(limits, rows))
        inputs: dict[str, Array] = {
            dense.name: random.standard_normal((rows, int(dense.shape[1])), np.float32),
            lengths.name: np.ones((len(limits), rows), np.int64),
            values.name: ids,
        }
        made.append(Batch((InferRequest("", rows, inputs),)))
    return made


def _median_s(backend: Backend, batches: Sequence[Batch], calls: int) -> float:
    times = []
    for call in range(calls):
        start = time.perf_counter()
        backend.prepare(batches[call % len(batches)])()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _rate(backend: Backend, batches: Sequence[Batch], lanes: int) -> float:
    """Return the batches a second of ``lanes`` threads."""
    counts = [0] * lanes
    end = time.perf_counter() + _LANES_S

    def work(lane: int) -> None:
        while time.perf_counter() < end:
            backend.prepare(batches[counts[lane] % len(batches)])()
            counts[lane] += 1

    _together([lambda lane=lane: work(lane) for lane in range(lanes)])  # type: ignore[misc]
    return sum(counts) / _LANES_S


def _together(calls: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(path: str) -> None:
    """Print one line a batch size, and one for the lanes."""
    backends = {name: _load(name, path) for name in _NAMES}
    spec = backends[_NAMES[0]].spec
    for rows, calls in _CALLS.items():
        batches = _batches(spec, rows)
        rounds = [[_median_s(backends[name], batches, calls) for name in _NAMES]
                  for _ in range(_ROUNDS)]  # fmt: skip
        found = np.array(rounds) * 1e6
        ratio = float(np.median(found[:, 1] / found[:, 0]))
        torch_us, native_us = np.median(found, axis=0)
        best = found[:, 1].min() / found[:, 0].min()
        print(f"{rows:5} rows  {_NAMES[0]} {torch_us:8.0f} us  {_NAMES[1]} {native_us:8.0f} us"
              f"  ratio {ratio:.3f}  of the best {best:.3f}")  # fmt: skip
    batches = _batches(spec, _LANES_ROWS)
    for name, backend in backends.items():
        pairs = [[_rate(backend, batches, lanes) for lanes in (1, 2)] for _ in range(3)]
        gain = float(np.median([two / one for one, two in pairs]))
        print(f"{_LANES_ROWS:5} rows  {name}: two lanes do {gain:.2f} of one")


if __name__ == "__main__":
    main(sys.argv[1])
