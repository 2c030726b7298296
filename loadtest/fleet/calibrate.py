"""Calibrate the simulation on a real server of this machine, and hold the two beside each other.

    python -m loadtest.fleet calibrate cost --json docs/benchmarks/2026-11-fleet-cost.json
    python -m loadtest.fleet calibrate native_dlrm --artifact artifacts/reference --rows 100

The server has one processor and the load generator the others. Calibrating runs and measured ones
take turns within a round, so that a slow spell of the machine meets both; all figures are medians
over the rounds. Each load is measured twice in a row, with the same arrivals: by how much the
machine is off from itself is the least that a simulation of it can be off. Loads are shares of the
capacity that the first round's calibration comes to. Exit code 1 if a judged figure is more than
10 % off: with the times of the calibrating runs for ``cost``, which does not compute, with those of
each run itself for a backend that does (``curve --own``).
"""

import argparse
import contextlib
import json
import logging
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest import workload
from loadtest.fleet import curve, followed, measured
from loadtest.fleet.box_server import COST, add_backend
from loadtest.fleet.calibration import Calibration, document_of, text_of
from loadtest.fleet.measured import Box, Run
from loadtest.fleet.notes import CROWD, FEW, LONE, Batches, Notes, SharedNotes
from loadtest.fleet.pair import SHOWN, TWICE
from loadtest.lab import setting, stats
from loadtest.lab.manifest import manifest
from loadtest.workload import ModelShape

logger = logging.getLogger(__name__)

_IN_FLIGHT = (LONE, FEW, 16, CROWD)
_CALIBRATE_S = 0.6
_CLOSED = (1, 8, 64)


class Measurement:
    """Rounds of calibrating and measuring against one server.

    ``disturbed`` counts pairs of runs that are left out, since others had too much of the
    processors meanwhile.
    """

    def __init__(self, arguments: argparse.Namespace, box: Box, bodies: Sequence[bytes]) -> None:
        self._given = arguments
        self._box = box
        self._bodies = bodies
        self._shared = arguments.backend != COST
        self._notes: Notes | SharedNotes = SharedNotes() if self._shared else Notes()
        self._loads: list[dict[str, Any]] = []
        self._stop_s = math.inf
        self.disturbed = 0

    def run(self) -> tuple[Calibration, list[dict[str, Any]]]:
        """Return the calibration and the points of the curve."""
        self._stop_s = time.monotonic() + self._given.within
        self._box.run(measured.closed(self._bodies, CROWD, 1.0))  # warm up
        for number in range(self._given.rounds):
            if number and self._is_late:
                break
            most = self._calibrate()
            self._loads = self._loads or self._points()
            for point in self._loads:
                if not (number and self._is_late):
                    self._measure(point, number, most)
        calibration = self._calibration()
        known = [point for point in self._loads if point["runs"]]
        return calibration, [self._concluded(point, calibration) for point in known]

    @property
    def _is_late(self) -> bool:
        return time.monotonic() > self._stop_s

    def _is_disturbed(self, run: Run) -> bool:
        """Return whether others had so much of the processors that the run tells of them."""
        most: float = self._given.most_others
        return run.others > most

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
            if self._is_disturbed(run):  # perhaps it was but a moment
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

    def _measure(self, point: dict[str, Any], number: int, most: float) -> None:
        """Measure ``point`` twice; ``most`` requests a second is what the machine can do now."""
        given = self._given
        rate = round(point["share"] * most, 1) if self._shared and point["rate"] else point["rate"]
        how = {"rate": rate, "seed": given.seed + number}
        if rate:
            due_s = followed.POISSON.times(rate, given.warmup + given.seconds, how["seed"])
            plan = measured.opened(self._bodies, due_s, given.warmup, given.seconds)
        else:
            plan = measured.closed(self._bodies, point["in_flight"], given.seconds)
        runs = []
        with contextlib.suppress(measured.FailedError):  # a stall so long that the queue was full
            runs = [self._box.run(plan) for _ in range(TWICE)]
        logger.info("%s %s: others had %s", point["in_flight"], rate,
                    [f"{run.others:.1%}" for run in runs])  # fmt: skip
        if runs and not any(map(self._is_disturbed, runs)):
            point["runs"] += [(run, how) for run in runs]
        else:
            self.disturbed += 1


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
    # The kernel's own share of a run is some 1 %.
    add(
        "--most-others",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="of the processors that other programs may have beside a run; else it is left out",
    )
    add("--seed", type=int, default=0)
    add("--json", type=Path, help="write calibration, curve and manifest here")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Calibrate, measure, compare; return the exit code."""
    logging.basicConfig(level=logging.INFO)
    arguments = _arguments(argv)
    about = {**manifest(arguments), "tool": "loadtest.fleet calibrate"}
    bodies = workload.make_bodies(_shape(arguments), arguments.rows, 200, 0, "protobuf")
    shared = arguments.backend != COST
    with tempfile.TemporaryDirectory() as folder:
        batches = Path(folder) / "batches" if shared else None
        with measured.serving(_options(arguments), batches) as box:
            measurement = Measurement(arguments, box, bodies)
            calibration, points = measurement.run()
    about["disturbed"] = measurement.disturbed
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
