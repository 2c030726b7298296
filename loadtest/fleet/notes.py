"""What calibrating runs said of a server that has one processor for its loop and its lane.

Everything but the wire is processor time, as the kernel counts it, so that what waited for what is
left to the simulation. Batches and loop are taken at the same pace: a machine that was slow in one
run and quick in the next would else tell a wrong shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadtest.fleet.box import TURNS_A_BATCH, Service
from loadtest.fleet.calibration import Calibration, Shared, service_of
from loadtest.fleet.measured import Run
from loadtest.fleet.timed import Ended
from loadtest.lab import stats
from scheduler.forecast import ENOUGH, HAND_OFF_S

LONE, FEW, CROWD = 1, 4, 64


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
    """Return what a lone request takes beyond the work of the server's two threads."""
    lane_s = sum([batch.cpu_s for batch in run.batches])
    return run.mean_s - (lane_s + run.loop_cpu_s) / run.requests


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
