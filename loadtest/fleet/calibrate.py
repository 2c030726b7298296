"""Calibrate the simulation on a real server of this machine, and hold the two beside each other.

    python -m loadtest.fleet.calibrate cost --json docs/benchmarks/2026-11-fleet-cost.json
    python -m loadtest.fleet.calibrate native_dlrm --artifact artifacts/reference --rows 100

Calibrating runs and measured ones take turns within a round, so that a slow spell of the machine
meets both; all figures are medians over the rounds. Loads are shares of the capacity that the
first round's calibration comes to. Exit code 1 if a judged figure is more than 10 % off.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadtest import workload
from loadtest.fleet import curve, measured
from loadtest.fleet.box_server import COST, add_backend
from loadtest.fleet.calibration import Calibration, document_of, fitted
from loadtest.fleet.measured import Box, Run
from loadtest.lab import setting, stats
from loadtest.lab.manifest import manifest
from loadtest.workload import ModelShape

_LONE, _CROWD = 1, (4, 16, 64)
_CALIBRATE_S = 0.6
_CLOSED = (1, 8, 64)


@dataclass(slots=True)
class Batches:
    """Batches by rows: how many, and their seconds together."""

    counted: dict[int, tuple[int, float]] = field(default_factory=dict)

    def take(self, run: Run) -> None:
        """Add those of ``run``."""
        for rows, (count, seconds) in run.statistics.batches.items():
            before, before_s = self.counted.get(rows, (0, 0.0))
            self.counted[rows] = (before + count, before_s + seconds)

    def points(self) -> tuple[tuple[int, float], ...]:
        """Return (rows, seconds) through them."""
        return fitted(self.counted)


@dataclass(slots=True)
class Notes:
    """What the calibrating runs said, run by run."""

    batches: Batches = field(default_factory=Batches)
    hops_s: list[float] = field(default_factory=list)
    loops_s: list[float] = field(default_factory=list)
    lone_s: list[float] = field(default_factory=list)

    def take(self, run: Run, in_flight: int) -> None:
        """Note one closed loop."""
        self.batches.take(run)
        if in_flight == _LONE:
            requests, waited_s = run.statistics.waited
            self.hops_s.append(waited_s / requests)
            self.lone_s.append(run.mean_s)
        elif in_flight == _CROWD[-1]:
            self.loops_s.append(run.loop_cpu_s / run.outcome.answered)

    def calibration(self, arguments: argparse.Namespace) -> Calibration:
        """Return what follows from all of them."""
        return Calibration(
            backend=arguments.backend,
            lanes=1,
            max_batch_rows=arguments.max_batch_rows,
            rows=arguments.rows,
            points=self.batches.points(),
            hop_s=stats.median(self.hops_s),
            loop_s=stats.median(self.loops_s),
            lone_s=stats.median(self.lone_s),
        )


class Measurement:
    """Rounds of calibrating and measuring against one server."""

    def __init__(self, arguments: argparse.Namespace, box: Box, bodies: Sequence[bytes]) -> None:
        self._given = arguments
        self._box = box
        self._bodies = bodies
        self._notes = Notes()
        self._loads: list[dict[str, Any]] = []

    def run(self) -> tuple[Calibration, list[dict[str, Any]]]:
        """Return the calibration and the points of the curve."""
        self._box.run(measured.closed(self._bodies, _CROWD[-1], 1.0))  # warm up
        for number in range(self._given.rounds):
            self._calibrate()
            self._loads = self._loads or self._points()
            for point in self._loads:
                point["runs"].append(self._measure(point, number))
        for point in self._loads:
            runs, batches = point.pop("runs"), point.pop("batches")
            point["points"] = batches.points()
            point["measured"] = {
                name: float(np.median([run[name] for run in runs])) for name in curve.SHOWN
            }
        return self._notes.calibration(self._given), self._loads

    def _calibrate(self) -> None:
        for in_flight in (_LONE, *_CROWD):
            plan = measured.closed(self._bodies, in_flight, _CALIBRATE_S)
            self._notes.take(self._box.run(plan), in_flight)

    def _points(self) -> list[dict[str, Any]]:
        given = self._given
        most = self._notes.calibration(given).box().capacity(given.rows)
        alike = {"seconds": given.seconds, "warmup_s": given.warmup}
        seeds = [given.seed + number for number in range(given.rounds)]
        opened: list[dict[str, Any]] = [
            {"rate": round(share * most, 1), "in_flight": 0, **alike, "seeds": seeds, **_empty()}
            for share in given.loads
        ]
        closed: list[dict[str, Any]] = [
            {"rate": 0.0, "in_flight": in_flight, **alike, **_empty()} for in_flight in _CLOSED
        ]
        return [*opened, *closed]

    def _measure(self, point: Mapping[str, Any], number: int) -> dict[str, float]:
        given = self._given
        if point["rate"]:
            seconds = given.warmup + given.seconds
            due_s = curve.POISSON.times(point["rate"], seconds, point["seeds"][number])
            plan = measured.opened(self._bodies, due_s, given.warmup, given.seconds)
        else:
            plan = measured.closed(self._bodies, point["in_flight"], given.seconds)
        run = self._box.run(plan)
        point["batches"].take(run)
        response = run.outcome.response
        shares = {f"p{share}_ms": response.percentile(share) * 1e3 for share in (50, 90, 99)}
        rate = run.outcome.answered / max(run.outcome.elapsed_s, given.seconds)
        return {"requests_per_s": rate, "mean_ms": run.mean_s * 1e3, **shares}


def _empty() -> dict[str, Any]:
    return {"runs": [], "batches": Batches()}


def _shape(arguments: argparse.Namespace) -> ModelShape:
    return (
        setting.FAKE_SHAPE if arguments.backend == COST else workload.read_shape(arguments.artifact)
    )


def _options(arguments: argparse.Namespace) -> list[str]:
    names = ("artifact", "batch_ms", "row_us", "max_batch_rows")
    given = {f"--{name.replace('_', '-')}": str(getattr(arguments, name)) for name in names}
    return [arguments.backend, *(text for pair in given.items() for text in pair)]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add_backend(parser)
    add = parser.add_argument
    add("--rows", type=int, default=10, help="of each request")
    add("--loads", type=float, nargs="+", default=[0.3, 0.5, 0.7, 0.9])
    add("--seconds", type=float, default=1.5, help="each measured run")
    add("--warmup", type=float, default=0.3, help="seconds before each")
    add("--rounds", type=int, default=3)
    add("--seed", type=int, default=0)
    add("--json", type=Path, help="write calibration, curve and manifest here")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Calibrate, measure, compare; return the exit code."""
    arguments = _arguments(argv)
    about = manifest(arguments)
    bodies = workload.make_bodies(_shape(arguments), arguments.rows, 200, 0, "protobuf")
    with measured.serving(_options(arguments), apart=arguments.backend == COST) as box:
        calibration, points = Measurement(arguments, box, bodies).run()
    document = document_of(about, calibration, points)
    if arguments.json:
        text = json.dumps(document, indent=1) + "\n"
        arguments.json.write_text(text, encoding="utf-8")
    print(json.dumps({**about, "calibration": document["calibration"]}))
    code = curve.report(calibration.box(), calibration.rows, points)
    print("with the measured runs' own batch times:")
    curve.report(calibration.box(), calibration.rows, points, own=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
