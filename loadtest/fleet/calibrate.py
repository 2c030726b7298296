"""Calibrate the simulation on a real server of this machine, and hold the two beside each other.

    python -m loadtest.fleet calibrate cost --json docs/benchmarks/2026-11-fleet-cost.json
    python -m loadtest.fleet calibrate native_dlrm --artifact artifacts/reference --rows 100

The server has one processor and the load generator the others. Calibrating runs and measured ones
take turns within a round, so that a slow spell of the machine meets both; all figures are medians
over the rounds. Loads are shares of the capacity that the first round's calibration comes to. Exit
code 1 if a judged figure is more than 10 % off: with the times of the calibrating runs for
``cost``, which does not compute, with those of each run itself for a backend that does (``curve
--own``).
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest import workload
from loadtest.fleet import curve, followed, measured
from loadtest.fleet.box_server import COST, add_backend
from loadtest.fleet.calibration import Calibration, document_of, fitted, text_of
from loadtest.fleet.measured import Box, Run
from loadtest.fleet.notes import CROWD, FEW, LONE, SharedNotes
from loadtest.fleet.pair import SHOWN
from loadtest.lab import setting, stats
from loadtest.lab.manifest import manifest
from loadtest.workload import ModelShape

_IN_FLIGHT = (LONE, FEW, 16, CROWD)
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
    """What the calibrating runs said of a server whose lane sleeps, run by run."""

    batches: Batches = field(default_factory=Batches)
    hops_s: list[float] = field(default_factory=list)
    loops_s: list[float] = field(default_factory=list)
    lone_s: list[float] = field(default_factory=list)

    def take(self, run: Run, in_flight: int) -> None:
        """Note one closed loop."""
        self.batches.take(run)
        if in_flight == LONE:
            requests, waited_s = run.statistics.waited
            self.hops_s.append(waited_s / requests)
            self.lone_s.append(run.mean_s)
        elif in_flight == CROWD:
            self.loops_s.append(run.loop_cpu_s / run.outcome.answered)

    def calibration(self, backend: str, max_batch_rows: int, rows: int) -> Calibration:
        """Return what follows from all of them."""
        return Calibration(
            backend=backend,
            lanes=1,
            max_batch_rows=max_batch_rows,
            rows=rows,
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
        self._shared = arguments.backend != COST
        self._notes: Notes | SharedNotes = SharedNotes() if self._shared else Notes()
        self._loads: list[dict[str, Any]] = []

    def run(self) -> tuple[Calibration, list[dict[str, Any]]]:
        """Return the calibration and the points of the curve."""
        stop_s = time.monotonic() + self._given.within
        self._box.run(measured.closed(self._bodies, CROWD, 1.0))  # warm up
        for number in range(self._given.rounds):
            if number and time.monotonic() > stop_s:
                break
            most = self._calibrate()
            self._loads = self._loads or self._points()
            for point in self._loads:
                self._measure(point, number, most)
        calibration = self._calibration()
        return calibration, [self._concluded(point, calibration) for point in self._loads]

    def _calibration(self) -> Calibration:
        given = self._given
        return self._notes.calibration(given.backend, given.max_batch_rows, given.rows)

    def _concluded(self, point: Mapping[str, Any], calibration: Calibration) -> dict[str, Any]:
        """Return ``point`` with figures in place of its runs."""
        asked: list[tuple[Run, dict[str, float]]] = point["runs"]
        runs = [run for run, _ in asked]
        known = [_figures(run, self._given.seconds) for run in runs]
        medians = {name: stats.median([each[name] for each in known]) for name in SHOWN}
        if not self._shared:
            batches = Batches()
            for run in runs:
                batches.take(run)
            return {**point, "runs": [], "points": batches.points(), "measured": medians}
        service = calibration.box().service
        told = [
            {**how, "measured": figures, **followed.told(run, service)}
            for (run, how), figures in zip(asked, known, strict=True)
        ]
        rate = stats.median([how["rate"] for _, how in asked])
        return {**point, "rate": rate, "runs": told, "measured": medians}

    def _calibrate(self) -> float:
        """Take turns; return the requests a second of the last and largest crowd."""
        for in_flight in _IN_FLIGHT:
            plan = measured.closed(self._bodies, in_flight, _CALIBRATE_S)
            run = self._box.run(plan)
            self._notes.take(run, in_flight)
        return run.outcome.answered / run.outcome.elapsed_s

    def _points(self) -> list[dict[str, Any]]:
        given = self._given
        most = self._calibration().box().capacity(given.rows)
        alike = {"seconds": given.seconds, "warmup_s": given.warmup}
        seeds = [given.seed + number for number in range(given.rounds)]
        opened: list[dict[str, Any]] = [
            {"share": share, "rate": round(share * most, 1), "in_flight": 0, **alike,
             "seeds": seeds, "runs": []} for share in given.loads
        ]  # fmt: skip
        closed: list[dict[str, Any]] = [
            {"rate": 0.0, "in_flight": in_flight, **alike, "runs": []} for in_flight in _CLOSED
        ]
        return [*opened, *closed]

    def _measure(self, point: Mapping[str, Any], number: int, most: float) -> None:
        """Measure ``point`` once; ``most`` requests a second is what the machine can do now."""
        given = self._given
        rate = round(point["share"] * most, 1) if self._shared and point["rate"] else point["rate"]
        how = {"rate": rate, "seed": given.seed + number}
        if rate:
            due_s = followed.POISSON.times(rate, given.warmup + given.seconds, how["seed"])
            plan = measured.opened(self._bodies, due_s, given.warmup, given.seconds)
        else:
            plan = measured.closed(self._bodies, point["in_flight"], given.seconds)
        point["runs"].append((self._box.run(plan), how))


def _figures(run: Run, seconds: float) -> dict[str, float]:
    response = run.outcome.response
    shares = {f"p{share}_ms": response.percentile(share) * 1e3 for share in (50, 90, 99)}
    rate = run.outcome.answered / max(run.outcome.elapsed_s, seconds)
    return {"requests_per_s": rate, "mean_ms": run.mean_s * 1e3, **shares}


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
    add("--within", type=float, default=math.inf, help="seconds after which no round begins")
    add("--seed", type=int, default=0)
    add("--json", type=Path, help="write calibration, curve and manifest here")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Calibrate, measure, compare; return the exit code."""
    arguments = _arguments(argv)
    about = {**manifest(arguments), "tool": "loadtest.fleet calibrate"}
    bodies = workload.make_bodies(_shape(arguments), arguments.rows, 200, 0, "protobuf")
    shared = arguments.backend != COST
    with tempfile.TemporaryDirectory() as folder:
        batches = Path(folder) / "batches" if shared else None
        with measured.serving(_options(arguments), batches) as box:
            calibration, points = Measurement(arguments, box, bodies).run()
    document = document_of(about, calibration, points)
    if arguments.json:
        arguments.json.write_text(text_of(document), encoding="utf-8")
    print(json.dumps({**about, "calibration": document["calibration"]}))
    print("with the service times of the calibrating runs:")
    code = curve.report(curve.pairs(calibration, points, own=False))
    print("with those of the measured runs themselves:")
    own = curve.report(curve.pairs(calibration, points, own=True))
    return own if shared else code


if __name__ == "__main__":
    raise SystemExit(main())
