"""What must hold whenever the loop has come to rest."""

import math
from collections import Counter
from typing import cast

from scheduler.engine import Engine
from scheduler.lanes import Job
from scheduler.scheduler import Scheduler
from tests.simulation.backend import SimulatedBackend
from tests.simulation.journal import Journal
from tests.simulation.threads import Crew, SimulatedQueue, SimulatedThread
from tests.simulation.traffic import Asked, Row, ids_by_row


def check_rest(journal: Journal, crew: Crew) -> None:
    """Check what must hold when the loop has nothing left to do."""
    assert not journal.wrongs, journal.wrongs
    for thread in crew.threads:
        thread.held = None  # the loop knows
    now = journal.loop.time()
    for asked in journal.pending:
        assert asked.deadline_s > now, f"{asked}: its deadline passed without an answer"
    for backend, scheduler in journal.schedulers.items():
        check_watchdog(journal, backend, scheduler)
        check_bounds(journal, crew, backend, scheduler)
        if scheduler.failure is None and journal.options.mode != "inline":
            check_lanes(journal, crew, backend, scheduler)


def check_ready(journal: Journal, engine: Engine, *, closing: bool) -> None:
    """Check that the engine is ready unless a model that it serves is dead, or it closes."""
    dead = any(scheduler._backend in journal.deaths for scheduler in engine._schedulers())
    ready = engine.started and not dead and not closing
    assert engine.ready == ready, f"ready is {engine.ready}, not {ready}"


def note_failure(journal: Journal, backend: SimulatedBackend, scheduler: Scheduler) -> None:
    """Check, as soon as a model has failed, that it had a reason."""
    if scheduler.failure is not None and backend not in journal.deaths:
        watchdog_s = journal.options.watchdog_s or math.inf
        stuck = longest_s(scheduler, journal.loop.time()) >= watchdog_s
        journal.require(stuck, f"{backend.version} failed: {scheduler.failure}")
        journal.fatal(backend, scheduler.failure)


def check_watchdog(journal: Journal, backend: SimulatedBackend, scheduler: Scheduler) -> None:
    """Check that a model whose lane is stuck has failed."""
    noticed = scheduler.failure is not None or scheduler._closing
    overdue = longest_s(scheduler, journal.loop.time()) > journal.options.watchdog_s > 0
    assert noticed or not overdue, f"{backend.version} is stuck, unnoticed"


def check_bounds(
    journal: Journal, crew: Crew, backend: SimulatedBackend, scheduler: Scheduler
) -> None:
    """Check that no more waits than may, in the queue or for a lane."""
    options, runner = journal.options, scheduler._runner
    rows = sum(waiting_rows(journal, crew, backend.version).values())
    most = max(options.max_queue_rows, backend.spec.max_batch_rows)
    assert rows <= most, f"{backend.version}: {rows} rows wait"
    assert len(runner) <= backend.lanes + 1, f"{backend.version}: {len(runner)} jobs"


def check_taken(journal: Journal, crew: Crew, job: Job, inbox: SimulatedQueue) -> None:
    """Check that only a full batch was taken while no lane was free: later arrivals share it."""
    for backend, scheduler in journal.schedulers.items():
        if cast("SimulatedQueue", scheduler._runner._lanes._ahead) is inbox:
            waiting = waiting_rows(journal, crew, backend.version)
            rows = sum(waiting.values())  # the job's are among them yet
            ids = sum(sum(ids_by_row(asked.request)) for asked in waiting)
            full = rows >= backend.spec.max_batch_rows or ids >= journal.options.max_batch_ids
            full = full or journal.options.mode != "batch"
            journal.require(full, f"{backend.version}: {job.rows} rows taken, no lane was free")


def longest_s(scheduler: Scheduler, now: float) -> float:
    """Return for how long a job has been stuck on its thread."""
    jobs = [job for thread in threads_of(scheduler) for job in (thread.holds, thread.held)]
    return max((job.stuck_s(now) for job in jobs if isinstance(job, Job)), default=0.0)


def threads_of(scheduler: Scheduler) -> list[SimulatedThread]:
    """Return the lanes' threads, the last the one that gathers ahead."""
    return cast("list[SimulatedThread]", scheduler._runner._lanes._threads)


def check_lanes(
    journal: Journal, crew: Crew, backend: SimulatedBackend, scheduler: Scheduler
) -> None:
    """Check that no lane idles while something runnable waits, but for ``max_delay_s``."""
    *computing, gathering = threads_of(scheduler)
    lanes_idle = sum(
        thread in crew.threads and thread.parked_at == "get" and not thread.ready()
        for thread in computing
    )
    ahead = (gathering.holds, *cast("SimulatedQueue", scheduler._runner._lanes._ahead).items)
    jobs_ahead = sum(isinstance(job, Job) for job in ahead)
    if lanes_idle <= jobs_ahead:
        return
    waiting = waiting_rows(journal, crew, backend.version)
    if waiting and not is_held(journal, backend, scheduler, waiting):
        names = ", ".join(f"{asked} ({rows} rows)" for asked, rows in waiting.items())
        raise AssertionError(f"{backend.version}: {lanes_idle} lanes idle while {names} wait")


def found_waiting(journal: Journal, crew: Crew, asked: Asked) -> tuple[int, int]:
    """Return the rows and bytes that at most wait where ``asked`` goes."""
    waiting = waiting_rows(journal, crew, asked.target)
    return sum(waiting.values()), sum(other.request.size_bytes for other in waiting)


def waiting_rows(journal: Journal, crew: Crew, version: str | None) -> dict[Asked, int]:
    """Return, for each request, the rows that no lane has and no thread is about to get."""
    pending = [one for one in journal.pending if one.target == version and one.asked_at < math.inf]
    if not pending:
        return {}
    taken: set[Row] = set()
    for job in crew.jobs():
        for piece in job.pieces:
            taken.update(journal.asked_by(piece.waiting.request).rows[piece.start : piece.stop])
    waiting = {
        asked: sum(row not in journal.runs and row not in taken for row in asked.rows)
        for asked in pending
    }
    return {asked: rows for asked, rows in waiting.items() if rows}


def is_held(
    journal: Journal, backend: SimulatedBackend, scheduler: Scheduler, waiting: dict[Asked, int]
) -> bool:
    """Return whether ``max_delay_s`` still holds back what waits."""
    oldest_s = min(asked.asked_s for asked in waiting)
    full = min(rows_by_group(waiting).values()) >= backend.spec.max_batch_rows
    delayed = journal.loop.time() < oldest_s + journal.options.max_delay_s
    return delayed and not full and not scheduler._closing


def rows_by_group(waiting: dict[Asked, int]) -> Counter[bool]:
    """Return the rows that wait in each group; only those of one can share a batch."""
    groups: Counter[bool] = Counter()
    for asked, rows in waiting.items():
        groups[asked.group] += rows
    return groups
