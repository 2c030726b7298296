"""The measured and the simulated curve of one server, side by side.

    python -m loadtest.fleet.curve docs/benchmarks/2026-11-fleet-cost.json
    python -m loadtest.fleet.curve docs/benchmarks/2026-11-fleet-cost.json --own

simulates what the file says was measured, prints both, and exits with 1 if a judged figure is more
than 10 % off. Open loops are simulated with the very arrival times that were measured with. p99 is
shown and not judged: a calibration knows what batches take on average, not how that varies.

``--own``: with the times that the server counted for the batches of the measured runs themselves,
instead of those of the calibrating runs between them. It tells an error of the model from a machine
that was slower in one run than in the other.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.fleet.box import Box
from loadtest.fleet.calibration import read, service_of
from loadtest.fleet.closed import simulate_closed
from loadtest.fleet.fleet import simulate
from loadtest.fleet.plan import Plan
from loadtest.lab.tables import print_table
from loadtest.schedule import Arrivals

MOST_OFF = 0.10
JUDGED = ("requests_per_s", "mean_ms", "p50_ms", "p90_ms")
SHOWN = (*JUDGED, "p99_ms")
POISSON = Arrivals("poisson")


def simulated(box: Box, rows: int, point: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of one point of the curve as the simulation has them."""
    if not point["rate"]:
        result = simulate_closed(box, point["in_flight"], rows, point["seconds"], seed=1)
        latencies = np.asarray(result.latencies_s)
        return figures(latencies, len(latencies) / result.seconds)
    runs = [_opened(box, rows, point, seed) for seed in point["seeds"]]
    return {name: float(np.median([run[name] for run in runs])) for name in SHOWN}


def _opened(box: Box, rows: int, point: Mapping[str, Any], seed: int) -> dict[str, float]:
    warmup_s, seconds = point["warmup_s"], point["seconds"]
    due_s = POISSON.times(point["rate"], warmup_s + seconds, seed)
    result = simulate(Plan(box), due_s.tolist(), [rows], seed)
    counts = due_s >= warmup_s
    latencies = np.asarray(result.latencies_s)[counts]
    end_s = float(np.max(due_s[counts] + latencies)) - warmup_s
    return figures(latencies, len(latencies) / max(end_s, seconds))


def figures(latencies_s: "np.ndarray[Any, np.dtype[np.float64]]", rate: float) -> dict[str, float]:
    """Return the figures of latencies and a rate of answers."""
    shares = {f"p{share}_ms": float(np.percentile(latencies_s, share)) * 1e3
              for share in (50, 90, 99)}  # fmt: skip
    return {"requests_per_s": rate, "mean_ms": float(latencies_s.mean()) * 1e3, **shares}


def compared(
    box: Box, rows: int, curve: Sequence[Mapping[str, Any]], *, own: bool
) -> tuple[list[dict[str, float | str]], float]:
    """Return a line a point, and how far off the worst judged figure is."""
    lines: list[dict[str, float | str]] = []
    worst = 0.0
    for point in curve:
        served = replace(box, service=service_of(point["points"])) if own else box
        ours, theirs = simulated(served, rows, point), point["measured"]
        off = {name: ours[name] / theirs[name] - 1 for name in SHOWN}
        worst = max([worst, *(abs(off[name]) for name in JUDGED)])
        load = f"{point['rate']:.0f}/s" if point["rate"] else f"{point['in_flight']} in flight"
        line: dict[str, float | str] = {"load": load}
        for name in SHOWN:
            line[name] = f"{theirs[name]:.4g} / {ours[name]:.4g} ({off[name]:+.1%})"
        lines.append(line)
    return lines, worst


def report(box: Box, rows: int, curve: Sequence[Mapping[str, Any]], *, own: bool = False) -> int:
    """Print measured / simulated (difference) for every point; return the exit code."""
    lines, worst = compared(box, rows, curve, own=own)
    print_table(lines)
    within = worst <= MOST_OFF
    print(f"judged figures are off by {worst:.1%} at most: {'kept' if within else 'NOT KEPT'}")
    return 0 if within else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Compare what a file holds with the simulation of it."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.fleet.curve")
    parser.add_argument("file", type=Path)
    parser.add_argument("--own", action="store_true", help="take the measured runs' batch times")
    arguments = parser.parse_args(argv)
    calibration, document = read(arguments.file)
    print(json.dumps(document["manifest"]))
    box, points = calibration.box(), document["curve"]
    return report(box, calibration.rows, points, own=arguments.own)


if __name__ == "__main__":
    raise SystemExit(main())
