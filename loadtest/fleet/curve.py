"""The measured and the simulated curve of one server, side by side.

    python -m loadtest.fleet curve docs/benchmarks/2026-11-fleet-cost.json
    python -m loadtest.fleet.curve docs/benchmarks/2026-11-fleet-cost.json --own

simulates what the file says was measured, prints both, and exits with 1 if a judged figure is more
than 10 % off. Open loops are simulated with the very arrival times that were measured with. p99 is
shown and not judged: a calibration knows what batches take on average, not how that varies.

``--own``: with the service times of the measured runs themselves, instead of those of the
calibrating runs between them. It tells an error of the model from a machine that was slower in one
run than in the other.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.fleet import followed, plot
from loadtest.fleet.box import Box
from loadtest.fleet.calibration import Calibration, read, service_of
from loadtest.fleet.closed import simulate_closed
from loadtest.fleet.fleet import simulate
from loadtest.fleet.followed import POISSON
from loadtest.fleet.pair import MOST_OFF, SHOWN, Pair
from loadtest.fleet.plan import Plan, Result
from loadtest.lab.tables import print_table
from loadtest.schedule import Times


def simulated(box: Box, rows: int, point: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of one point of the curve as the simulation has them, on a steady box."""
    if not point["rate"]:
        result = simulate_closed(box, point["in_flight"], rows, point["seconds"], seed=1)
        return _closed_figures(result)
    asked = [(run["rate"], run["seed"]) for run in point.get("runs", ())]
    asked = asked or [(point["rate"], seed) for seed in point["seeds"]]
    runs = [_opened(box, rows, point, rate, seed) for rate, seed in asked]
    return {name: float(np.median([run[name] for run in runs])) for name in SHOWN}


def _opened(
    box: Box, rows: int, point: Mapping[str, Any], rate: float, seed: int
) -> dict[str, float]:
    due_s = POISSON.times(rate, point["warmup_s"] + point["seconds"], seed)
    return _open_figures(simulate(Plan(box), due_s.tolist(), [rows], seed), due_s, point)


def _open_figures(result: Result, due_s: Times, point: Mapping[str, Any]) -> dict[str, float]:
    warmup_s = point["warmup_s"]
    counts = due_s >= warmup_s
    latencies = np.asarray(result.latencies_s)[counts]
    end_s = float(np.max(due_s[counts] + latencies)) - warmup_s
    return figures(latencies, len(latencies) / max(end_s, point["seconds"]))


def _closed_figures(result: Result) -> dict[str, float]:
    latencies = np.asarray(result.latencies_s)
    return figures(latencies, len(latencies) / result.seconds)


def _own(calibration: Calibration, point: Mapping[str, Any]) -> Pair:
    """Return a point with the service times of its measured runs."""
    if not calibration.shared:
        box = replace(calibration.box(), service=service_of(point["points"]))
        return Pair(point, simulated(box, calibration.rows, point))
    known: list[dict[str, float]] = []
    for run in point["runs"]:
        result = followed.simulated(calibration, calibration.shared, point, run)
        if point["rate"]:
            seconds = point["warmup_s"] + point["seconds"]
            due_s = POISSON.times(run["rate"], seconds, run["seed"])
            known.append(_open_figures(result, due_s, point))
        else:
            known.append(_closed_figures(result))
    medians = {name: float(np.median([run[name] for run in known])) for name in SHOWN}
    return Pair(point, medians, known)


def figures(latencies_s: "np.ndarray[Any, np.dtype[np.float64]]", rate: float) -> dict[str, float]:
    """Return the figures of latencies and a rate of answers."""
    shares = {f"p{share}_ms": float(np.percentile(latencies_s, share)) * 1e3
              for share in (50, 90, 99)}  # fmt: skip
    return {"requests_per_s": rate, "mean_ms": float(latencies_s.mean()) * 1e3, **shares}


def pairs(calibration: Calibration, curve: Sequence[Mapping[str, Any]], *, own: bool) -> list[Pair]:
    """Return every point as measured and as simulated."""
    if own:
        return [_own(calibration, point) for point in curve]
    box = calibration.box()
    return [Pair(point, simulated(box, calibration.rows, point)) for point in curve]


def report(found: Sequence[Pair]) -> int:
    """Print measured / simulated (difference) for every point; return the exit code."""
    if not found:
        print("NOT KEPT: no run is left to compare, other programs disturbed all of them")
        return 1
    print_table([pair.line() for pair in found])
    worst = max(pair.worst for pair in found)
    within = worst <= MOST_OFF
    print(f"judged figures are off by {worst:.1%} at most: {'kept' if within else 'NOT KEPT'}")
    return 0 if within else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Compare what a file holds with the simulation of it."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.fleet curve")
    parser.add_argument("file", type=Path)
    parser.add_argument("--own", action="store_true", help="take the measured runs' service times")
    parser.add_argument("--svg", type=Path, help="draw the two curves here")
    arguments = parser.parse_args(argv)
    calibration, document = read(arguments.file)
    print(json.dumps(document["manifest"]))
    found = pairs(calibration, document["curve"], own=arguments.own)
    if arguments.svg:
        arguments.svg.write_text(plot.drawn(found), encoding="utf-8")
    return report(found)


if __name__ == "__main__":
    raise SystemExit(main())
