"""What runs: the jobs of one model on its lanes, or on the loop itself, watched for being stuck."""

import asyncio
import logging
import math
from collections.abc import Callable

from scheduler.backend import Backend, Elastic
from scheduler.forecast import Forecast
from scheduler.lanes import Clock, Job, Lanes, Wanted
from scheduler.options import SchedulerOptions
from scheduler.waiting import NOTHING, Load

logger = logging.getLogger(__name__)


class Runner:
    """Start jobs and tell when they are done.

    ``done`` is called on the loop after each job, ``failed`` with a reason if the backend can be
    used no more. ``forecast`` learns from each job.
    """

    def __init__(
        self,
        backend: Backend,
        options: SchedulerOptions,
        clock: Clock,
        wanted: Wanted,
        done: Callable[[Job], None],
        failed: Callable[[str], None],
    ) -> None:
        self._backend = backend
        self._lane_count = self._most_lanes = backend.lanes
        self._elastic = backend if isinstance(backend, Elastic) else None
        self.forecast = Forecast(options.limits(backend.spec), backend.lanes)
        self._clock = clock
        self._wanted = wanted
        self._done = done
        self._failed = failed
        self._watchdog_s = options.watchdog_s
        self._inline_below_s = options.inline_below_s
        self._quick = NOTHING  # the largest that lately took less than that
        self._watchdog: asyncio.TimerHandle | None = None
        self._running: set[Job] = set()
        self._loop = asyncio.get_running_loop()
        self._lanes = Lanes(
            backend, clock, wanted, self._job_done, lambda: failed("a compute thread ended")
        )

    def __len__(self) -> int:
        return len(self._running)

    @property
    def free(self) -> int:
        """How many lanes have nothing to do."""
        return max(0, self._lane_count - len(self._running))

    @property
    def can_gather_ahead(self) -> bool:
        """Whether no batch waits for a lane yet."""
        return len(self._running) <= self._lane_count

    def adapt(self, waiting_rows: int) -> None:
        """Use as many lanes as the backend has now, if it has more at one time than at another."""
        if self._elastic is not None:
            lanes = self._elastic.lanes_for(waiting_rows)
            self._lane_count = self.forecast.lanes = max(1, min(lanes, self._most_lanes))

    def is_quick(self, load: Load, now: float) -> bool:
        """Return whether ``load`` is worth no hand-off: short by forecast, and no larger than seen.

        A forecast alone would let in a first large batch, of which small ones say little.
        """
        return (
            self._elastic is None
            and load.rows <= self._quick.rows
            and load.ids <= self._quick.ids
            and self.forecast.known(now)
            and self.forecast.batch_s(load.rows, load.ids) < self._inline_below_s
        )

    def under_way_s(self, now: float) -> float:
        """Return the seconds that the running jobs still take, all together, as forecast."""
        return sum([self._left_s(job, now) for job in self._running])

    def free_in_s(self, now: float) -> float:
        """Return the seconds until a lane is free, as forecast; 0 while nothing is known."""
        if self.free or not self.forecast.known(now):
            return 0.0
        return min([self._left_s(job, now) for job in self._running])

    def start(self, job: Job) -> None:
        """Run ``job`` on a lane: at once if one is free, else gathered ahead for the next."""
        ahead = not self.free
        self._running.add(job)
        if self._watchdog is None and self._watchdog_s:
            self._watchdog = self._loop.call_later(self._watchdog_s, self._look)
        self._lanes.submit(job, ahead=ahead)

    def run_inline(self, job: Job) -> None:
        """Run ``job`` now, on the calling thread, which is the loop's; nobody is called.

        What there is to ``learn`` of it has time until it is answered.
        """
        try:
            job.run(self._backend, self._wanted, self._clock, 0)
        except BaseException:  # SystemExit and such would end a lane's thread: not the loop's
            logger.exception("%s: the backend ended its thread", self._backend.spec.name)
            job.lose(self._backend, "a compute thread ended")

    def forget_unbegun(self) -> list[Job]:
        """Return the jobs that no lane has begun, and forget them: they will not be ``done``.

        If a lane begins one all the same it finds nobody in it who is wanted any more: to be
        called after everybody has been answered.
        """
        unbegun = [job for job in self._running if job.started_s == math.inf]
        self._running.difference_update(unbegun)
        return unbegun

    def stop(self) -> None:
        """End the lanes after what they were given."""
        self._lanes.stop()
        self._stop_watching()

    def join(self, timeout_s: float) -> bool:
        """Wait for the lanes to end; return whether they did."""
        return self._lanes.join(timeout_s)

    def _job_done(self, job: Job) -> None:
        if job not in self._running:
            return  # forgotten
        now = self._clock()
        self._running.discard(job)
        if not self._running:
            self._stop_watching()
        self.learn(job, now)  # first: what is next is chosen by it
        self._done(job)

    def _left_s(self, job: Job, now: float) -> float:
        return max(0.0, self.forecast.batch_s(job.rows, job.ids) - job.elapsed_s(now))

    def learn(self, job: Job, now: float) -> None:
        """Learn from a job that was over ``now``."""
        if job.runs != 1:
            return  # one that was retried in parts says nothing of its size
        took_s = job.elapsed_s(now)
        self.forecast.observe(job.rows, job.ids, took_s, now)
        if took_s < self._inline_below_s:
            quick = self._quick
            self._quick = Load(1, max(quick.rows, job.rows), max(quick.ids, job.ids))
        elif job.rows <= self._quick.rows and job.ids <= self._quick.ids:
            self._quick = NOTHING

    def _look(self) -> None:
        """Fail if a job has been stuck for too long; look again when the oldest would have."""
        self._watchdog = None
        if not self._running:
            return
        longest_s = max(job.stuck_s(self._clock()) for job in self._running)
        if longest_s < self._watchdog_s:
            self._watchdog = self._loop.call_later(self._watchdog_s - longest_s, self._look)
        else:
            self._failed(f"a batch has been running for {longest_s:.3g} s (watchdog_s)")

    def _stop_watching(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
