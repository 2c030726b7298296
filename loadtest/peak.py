"""``python -m loadtest.peak``: what one core of this machine can do at most, as one JSON object.

A process of its own, bound to one CPU before NumPy is imported, so that its BLAS has one thread.
"""

import json
import os
import sys
import time
from collections.abc import Callable

_SIDE, _ROUNDS = 1024, 7
_ROW_BYTES, _TABLE_ROWS, _GATHERED_ROWS = 64, 2_500_000, 200_000


def main() -> None:
    """Measure and print: GFLOP/s of sgemm, GB/s of streaming 3 MB again, ns to fetch a row."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import numpy as np  # noqa: PLC0415 - it counts the CPUs when it is imported

    rng = np.random.default_rng(0)
    left = rng.standard_normal((_SIDE, _SIDE), np.float32)
    product = np.empty_like(left)
    gemm_s = best_s(lambda: np.matmul(left, left, out=product))
    weights = rng.standard_normal(3 << 18, np.float32)
    stream_s = best_s(lambda: np.dot(weights, weights))
    table = np.zeros((_TABLE_ROWS, _ROW_BYTES // 8), np.int64) + 1
    ids = rng.integers(0, _TABLE_ROWS, _GATHERED_ROWS)
    rows = np.empty((_GATHERED_ROWS, _ROW_BYTES // 8), np.int64)
    gather_s = best_s(lambda: np.take(table, ids, axis=0, out=rows, mode="clip"))
    figures = {
        "sgemm_gflops": 2 * _SIDE**3 / gemm_s / 1e9,
        "stream_gb_s": weights.nbytes / stream_s / 1e9,
        "row_ns": gather_s / _GATHERED_ROWS * 1e9,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


def best_s(call: Callable[[], object]) -> float:
    """Return the shortest of several runs, in seconds."""
    call()
    times = []
    for _ in range(_ROUNDS):
        started_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - started_s)
    return min(times)


if __name__ == "__main__":
    main()
