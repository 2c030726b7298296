"""What calibrating runs said of a server: whose lane sleeps, or has one processor with its loop.

Of the latter everything but the wire is processor time, as the kernel counts it, so that what
waited for what is left to the simulation. Batches and loop are taken at the same pace: a machine
that was slow in one run and quick in the next would else tell a wrong shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadtest.fleet.box import TURNS_A_BATCH, Service
from loadtest.fleet.calibration import Calibration, Shared, fitted, service_of
from loadtest.fleet.measured import Run
from loadtest.fleet.timed import Ended
from loadtest.lab import stats
from scheduler.forecast import ENOUGH, HAND_OFF_S

LONE, FEW, CROWD = 1, 4, 64


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


@dataclass(slots=True)
class SharedNotes:
    """Closed loops by how many requests were in flight."""

    runs: dict[int, list[Run]] = field(default_factory=dict)

    def take(self, run: Run, in_flight: int) -> None:
        """Note one closed loop."""
        self.runs.setdefault(in_flight, []).append(run)

    def calibration(self, backend: str, max_batch_rows: int, rows: int) -> Calibration:
        """Return what follows from all of them."""
        batches = [batch for runs in self.runs.values() for run in runs for batch in run.batches]
        points = straight(batches, rows, max_batch_rows)
        service = service_of(points)
        alone_s, crowd_s = (self._loop_s(service, in_flight) for in_flight in (LONE, CROWD))
        together = self._median(CROWD, lambda run: run.requests / len(run.batches))
        turn_s = max(0.0, (alone_s - crowd_s) / (TURNS_A_BATCH * (1 - 1 / together)))
        return Calibration(
            backend=backend,
            lanes=1,
            max_batch_rows=max_batch_rows,
            rows=rows,
            points=points,
            hop_s=self._median(LONE, lambda run: run.statistics.waited[1] / run.requests),
            loop_s=max(0.0, alone_s - TURNS_A_BATCH * turn_s),
            lone_s=self._median(LONE, lambda run: run.mean_s),
            shared=Shared(
                turn_s=turn_s,
                yield_s=self._median(FEW, lambda run: run.loop_wait_s / run.requests),
                wire_s=max(0.0, self._median(LONE, beyond_s)),
                client_s=self._median(LONE, lambda run: run.outcome.cpu_s / run.requests),
                enough_s=ENOUGH * max(service.of(0), HAND_OFF_S),
            ),
        )

    def _loop_s(self, service: Service, in_flight: int) -> float:
        """Return the loop's seconds a request, at the pace that ``service`` has."""
        return self._median(
            in_flight, lambda run: run.loop_cpu_s / run.requests / slowness(run.batches, service)
        )

    def _median(self, in_flight: int, figure: Callable[[Run], float]) -> float:
        return stats.median([figure(run) for run in self.runs[in_flight]])


def beyond_s(run: Run) -> float:
    """Return what a lone request takes beyond the server's two threads, others' part in both."""
    spent_s = sum([batch.spent_s for batch in run.batches])
    return run.mean_s - spent_s / run.requests - loop_spent_s(run)


def loop_spent_s(run: Run) -> float:
    """Return the loop's seconds a request, with what others took of it, as of the lane's."""
    spent_s = sum([batch.spent_s for batch in run.batches])
    cpu_s = sum([batch.cpu_s for batch in run.batches])
    return run.loop_cpu_s / run.requests * max(1.0, spent_s / cpu_s)


def slowness(batches: Sequence[Ended], service: Service) -> float:
    """Return by how much ``batches`` took longer than ``service`` says."""
    expected_s = sum([service.of(batch.rows) for batch in batches])
    return sum([batch.cpu_s for batch in batches]) / expected_s


def straight(
    batches: Sequence[Ended], least_rows: int, most_rows: int
) -> tuple[tuple[int, float], ...]:
    """Return two points, (rows, seconds), of the line through ``batches``, all counting alike."""
    rows = np.array([batch.rows for batch in batches], np.float64)
    cpu_s = np.array([batch.cpu_s for batch in batches])
    weighted = np.stack([1 / cpu_s, rows / cpu_s], axis=1)
    (batch_s, row_s), *_ = np.linalg.lstsq(weighted, np.ones(len(rows)))
    return tuple((at, float(batch_s + row_s * at)) for at in (least_rows, most_rows))
