"""``python -m loadtest.compute``: one forward of every plan and backend beside the artifact's own.

Forward only: batches are gathered beforehand, no server, no scheduler, one thread a forward. All
candidates take turns within each round, so that a slow spell of the machine hits them alike.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from backends.dlrm.manifest import GOLDEN_SCORES
from loadtest import floor, scaling, workload
from loadtest.candidates import BASE, Candidate, Prepares, load
from loadtest.command import machine
from loadtest.encodings import DENSE
from loadtest.lab.stats import median, median_ratio
from loadtest.lab.tables import print_table
from scheduler.errors import LoadError
from scheduler.types import Array, Batch, InferRequest

LEAST_SPREAD = 0.05
LANES_ROWS = 100
_DISTINCT = 20
_CELL_S = 0.05


def main(argv: Sequence[str]) -> int:
    """Measure, print Markdown tables; return 1 if a candidate's scores are not the artifact's."""
    arguments = _arguments(argv)
    try:
        candidates = load(arguments.artifact, arguments.only, _skipped)
    except LoadError as error:
        print(f"loadtest.compute: {error}", file=sys.stderr)
        return 1
    shape = workload.read_shape(arguments.artifact)
    print(json.dumps({**machine(), "command": ["python -m loadtest.compute", *argv]}))
    peak, work = floor.measure_peak(), floor.read_work(arguments.artifact)
    print(json.dumps(dataclasses.asdict(peak) | dataclasses.asdict(work)))
    errors, spread = golden_errors(candidates, arguments.artifact)
    print(f"\nStandard deviation of the golden scores: {spread:.3g}\n")
    for rows in arguments.rows:
        times = forward_times(candidates, shape, rows, arguments.rounds)
        print_table(_lines(times, rows, work.floor_s(peak, rows), errors))
        print()
    lanes = scaling.turns(candidates, draw_batches(shape, LANES_ROWS), arguments.rounds)
    print_table([scaling.line_of(name, found) for name, found in lanes.items()])
    good = all(error <= arguments.tolerance for error in errors.values())
    return 0 if good and spread >= LEAST_SPREAD else 1


def golden_errors(
    candidates: Sequence[Candidate], artifact: Path
) -> tuple[dict[str, float], float]:
    """Return each candidate's largest difference to BASE on the golden batch, and its spread.

    Without BASE, which needs PyTorch, the scores are compared with those of the export.
    """
    with np.load(artifact / "golden.npz") as golden:
        inputs = {
            key: golden[key]
            for key in golden.files
            if not key.startswith(("fp32.", *GOLDEN_SCORES))
        }
        recorded = {key: golden[key] for key in golden.files if key.startswith(GOLDEN_SCORES)}
    batch = Batch((InferRequest("", len(inputs[DENSE]), inputs),))
    scores = {one.name: _flat(one.backend.prepare(batch)()) for one in candidates}
    base = scores[BASE] if BASE in scores else _flat(recorded)
    return {name: float(np.abs(got - base).max()) for name, got in scores.items()}, float(
        base.std()
    )


def _skipped(name: str, why: Exception) -> None:
    print(f"loadtest.compute: skipped {name}: {why}", file=sys.stderr)


def _flat(outputs: Mapping[str, Array]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return np.concatenate([outputs[name].astype(np.float64).ravel() for name in sorted(outputs)])


def forward_times(
    candidates: Sequence[Candidate], shape: workload.ModelShape, rows: int, rounds: int
) -> dict[str, list[float]]:
    """Return the median seconds of one forward of ``rows`` rows by candidate, one a round."""
    batches = draw_batches(shape, rows)
    times: dict[str, list[float]] = {one.name: [] for one in candidates}
    for one in candidates:
        for batch in batches[:3]:
            one.backend.prepare(batch)()
    for _ in range(rounds):
        for one in candidates:
            times[one.name].append(_median_forward(one.backend, batches))
    return times


def draw_batches(shape: workload.ModelShape, rows: int) -> list[Batch]:
    """Return distinct batches, one id a bag, so that the tables do not stay in the caches."""
    rng = np.random.default_rng(0)
    return [
        Batch((InferRequest("", rows, workload.draw(shape, rows, rng)),)) for _ in range(_DISTINCT)
    ]


def _median_forward(backend: Prepares, batches: Sequence[Batch]) -> float:
    times: list[float] = []
    while sum(times) < _CELL_S or len(times) < 5:
        compute = backend.prepare(batches[len(times) % len(batches)])
        started_s = time.perf_counter()
        compute()
        times.append(time.perf_counter() - started_s)
    return median(times)


def _lines(
    times: Mapping[str, Sequence[float]], rows: int, floor_s: float, errors: Mapping[str, float]
) -> list[dict[str, float | str]]:
    base = next(iter(times))
    of_base = "of the artifact" if base == BASE else f"of {base}"
    return [
        {
            "plan": name,
            "rows": rows,
            "us": median(values) * 1e6,
            of_base: median_ratio(values, times[base]),
            "share of the floor": floor_s / median(values),
            "largest error": f"{errors[name]:.1e}",
        }
        for name, values in times.items()
    ]


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.compute", description=__doc__)
    add, shown = parser.add_argument, "(default: %(default)s)"
    add("artifact", type=Path, nargs="?", default=Path("artifacts/reference"), help="folder")
    add("--rows", type=_numbers, default="1,10,100,400,1600", help=f"rows a forward {shown}")
    add("--rounds", type=int, default=9, help=f"turns of each candidate {shown}")
    add("--only", type=lambda text: text.split(","), default=[], help="backend[:plan],...")
    add("--tolerance", type=float, default=1e-6, help=f"largest error allowed {shown}")
    return parser.parse_args(argv)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
