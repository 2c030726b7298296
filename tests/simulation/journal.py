"""What happened in one schedule, in order: written as it happens, judged at the end."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from scheduler.forecast import MIN_BATCHES
from scheduler.lanes import Job
from scheduler.observer import Computed, DropReason, Observer
from scheduler.options import SchedulerOptions
from scheduler.scheduler import Scheduler
from scheduler.types import Batch, InferRequest, ModelSpec
from tests.fixtures.manual_clock import ManualClockLoop
from tests.simulation.backend import SimulatedBackend
from tests.simulation.traffic import ROWS, Asked, Row, ids_by_row, rows_in


@dataclass(eq=False, slots=True)
class Run:
    """One time that a batch reached a backend: the first, or a part of it again."""

    backend: SimulatedBackend
    batch: Batch
    rows: tuple[Row, ...]
    ended: bool = False
    failed: bool = False


@dataclass(eq=False)
class Journal(Observer):
    """Count moments, keep every run, drop and death, and the story for whoever must read it."""

    loop: ManualClockLoop
    options: SchedulerOptions
    story: list[str]
    asked: list[Asked] = field(default_factory=list)
    pending: list[Asked] = field(default_factory=list)
    runs: dict[Row, list[Run]] = field(default_factory=lambda: defaultdict(list))
    drops: Counter[DropReason] = field(default_factory=Counter)
    deaths: dict[SimulatedBackend, int] = field(default_factory=dict)  # the moments
    dead_lanes: int = 0
    schedulers: dict[SimulatedBackend, Scheduler] = field(default_factory=dict)
    jobs: set[Job] = field(default_factory=set)
    computed_rows: int = 0
    computed_batches: Counter[str] = field(default_factory=Counter)
    queued_rows: dict[str, int] = field(default_factory=dict)
    loop_saw_s: float = 0.0  # deadlines up to here have been noticed
    close_s: float = math.inf
    cut_off_s: float = math.inf
    cuts_off_s: dict[str, float] = field(default_factory=dict)
    made: list[SimulatedBackend] = field(default_factory=list)
    moment: int = 0
    wrongs: list[str] = field(default_factory=list)  # raised there, the scheduler would hide them

    def tell(self, event: str) -> int:
        """Write ``event`` down; return its moment."""
        self.moment += 1
        self.story.append(f"{self.moment:5} {self.loop.time() - 1000:8.4f} s  {event}")
        return self.moment

    def require(self, holds: bool, wrong: str) -> None:
        """Note that something is ``wrong`` unless it ``holds``."""
        if not holds:
            self.wrongs.append(wrong)
            self.tell(f"WRONG: {wrong}")

    def asked_by(self, request: InferRequest) -> Asked:
        """Return what asked for ``request``, or for all of what it is a piece of."""
        return self.asked[int(request.id.partition(" ")[0])]

    def backends(self, asked: Asked) -> list[SimulatedBackend]:
        """Return those of the version that ``asked`` was for: more than one after a reload."""
        return [one for one in self.made if one.version == asked.target]

    def cuts_off_s_of(self, version: str | None) -> float:
        """Return from when on requests to ``version`` may be cut off."""
        return min(self.cut_off_s, self.cuts_off_s.get(version or "", math.inf))

    def has_forecast(self, model: str) -> bool:
        """Return whether ``model`` has run enough to forecast anything."""
        return self.computed_batches[model] >= MIN_BATCHES

    def computed(self, record: Computed) -> None:
        self.require(len(record.queue_s) > 0, "a batch of nothing was observed")
        self.computed_rows += record.rows
        self.computed_batches[record.model] += 1

    def dropped(self, model: str, reason: DropReason) -> None:
        self.drops[reason] += 1
        self.tell(f"dropped: {reason}")

    def queued(self, spec: ModelSpec, rows: int, requests: int, batches: int) -> None:
        self.queued_rows[spec.name] = rows

    def submitted(self, job: Job) -> None:
        """A job is on its way to a lane; gathered ahead, it comes by twice."""
        names = ", ".join(
            f"{piece.waiting.request.id}[{piece.start}:{piece.stop}]" for piece in job.pieces
        )
        moment = self.tell(f"job: {names}")
        if job in self.jobs:
            return
        self.jobs.add(job)
        for piece in job.pieces:
            asked = self.asked_by(piece.waiting.request)
            asked.taken_at = min(asked.taken_at, moment)
            self.require(asked.deadline_s > self.loop.time(), f"{asked} is taken too late")

    def began(self, backend: SimulatedBackend, batch: Batch, *, inline: bool) -> None:
        rows = rows_in(batch)
        names = ", ".join(request.id for request in batch.requests)
        moment = self.tell(f"{backend.version} begins {names} ({len(rows)} rows)")
        self._check_batch(backend, batch)
        lone = len(batch.requests) == 1 and backend.running == 1
        self.require(lone or not inline, "the loop runs a batch, or while a lane does")
        noticed_s = self.loop.time() if inline else self.loop_saw_s
        run = Run(backend, batch, rows)
        for row in rows:
            self.runs[row].append(run)
            asked = self.asked[row // ROWS]
            asked.taken_at = min(asked.taken_at, moment)
            if self.runs[row] == [run]:
                self.require(asked.cancelled_at == math.inf, f"{asked} runs though cancelled")
                self.require(asked.deadline_s > noticed_s, f"{asked} runs past its deadline")
                self.require(not asked.task.done(), f"{asked} runs though answered")

    def ended(self, backend: SimulatedBackend, batch: Batch, *, failed: bool) -> None:
        self.tell(
            f"{backend.version} {'fails' if failed else 'has computed'} {len(batch.requests)}"
        )
        run = next(run for run in reversed(self.runs[rows_in(batch)[0]]) if run.batch is batch)
        run.ended, run.failed = True, failed

    def fatal(self, backend: SimulatedBackend, reason: str) -> None:
        moment = self.tell(f"{backend.version}: {reason}")
        self.deaths.setdefault(backend, moment)
        self.dead_lanes += reason == "lane died"

    def _check_batch(self, backend: SimulatedBackend, batch: Batch) -> None:
        options, requests = self.options, batch.requests
        ids = sum(sum(ids_by_row(request)) for request in requests)
        groups = {"bias" in request.inputs for request in requests}
        self.require(0 < batch.rows <= backend.spec.max_batch_rows, "too many rows in a batch")
        self.require(ids <= options.max_batch_ids, "too many ids in a batch")
        self.require(options.mode == "batch" or len(requests) == 1, "a batch though none is wanted")
        self.require(backend.running <= backend.lanes, "more batches at once than lanes")
        self.require(backend.loaded and not backend.closed, "run before load, or after close")
        self.require(len(groups) == 1, "groups were mixed")
