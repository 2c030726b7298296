"""One model's requests: admit, wait, batch, run, answer. The async shell around the queue.

Event-driven on one loop: a push or a finished lane looks at the queue, so an idle lane starts at
once and a busy one finds everything that arrived meanwhile.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from scheduler.admission import Admission
from scheduler.answers import answer_of, answer_to_nothing, record_of, too_late
from scheduler.asking import Asked, Asker, awaited
from scheduler.backend import Backend
from scheduler.errors import Code, Missed, ServingError
from scheduler.execute import close
from scheduler.lanes import Clock, Job
from scheduler.observer import DropReason, Observer
from scheduler.options import SchedulerOptions
from scheduler.queue import RequestQueue
from scheduler.replies import Replies
from scheduler.runner import Runner
from scheduler.threads import run_in_thread
from scheduler.types import InferRequest, InferResponse, ModelSpec
from scheduler.updates import Updates
from scheduler.waiting import Piece, Waiting, no_forecast

logger = logging.getLogger(__name__)

# Requests a batch, lately, from which on one that finds the model idle is not taken to be alone.
CROWD = 1.1


class Scheduler:
    """Run the requests of one loaded backend on its lanes.

    ``changed`` is called if the scheduler fails; ``failure`` then says why, for good. ``updates``
    are of its embeddings. ``clock`` gives seconds: not the loop's, uvloop's has milliseconds only.
    """

    def __init__(
        self,
        backend: Backend,
        options: SchedulerOptions,
        observer: Observer,
        changed: Callable[[], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self.spec: ModelSpec = options.served(backend.spec)
        self.failure: str | None = None
        self.background = False
        self._backend = backend
        self._options = options
        self._observer = self._own_observer = observer
        self._changed = changed
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._queue = queue = RequestQueue(options.limits(self.spec))
        self._replies = Replies(self.spec.version, self._expire, self._abandon)
        self._runner = Runner(backend, options, clock, self._wanted, self._job_done, self._fail)
        self.updates = Updates(backend, self.spec, observer, lambda: not len(self._runner))
        self._forecast = self._runner.forecast
        self._admission = Admission(backend, self.spec, options, queue, self._runner, self._dropped)
        self._wake: asyncio.TimerHandle | None = None
        self._look_pending = self._closing = False
        self._crowd = CROWD  # requests a batch, lately

    @property
    def busy(self) -> bool:
        """Whether every lane has something to do, or requests wait."""
        return not self._runner.free or len(self._queue) > 0

    def stand_back(self, background: bool) -> None:
        """Never run on the event loop, and report nothing, while in the background."""
        self.background = background
        self._observer = Observer() if background else self._own_observer

    def ask(self, request: InferRequest, asker: Asker) -> Asked:
        """Have ``asker`` told the answer to ``request``. Raises ServingError."""
        self._refuse_if_down()
        request = self._admission.check(request, self._missed)
        if request.rows == 0:
            asker.answered(answer_to_nothing(self.spec, request))
            return Asked(self.spec.version)
        waiting = self._admission.admit(request, self._clock())
        owed = self._replies.open(waiting, asker)
        self._guard(self._arrived)
        return owed

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer ``request``; cancelling the awaiting task cancels it. Raises ServingError."""
        return await awaited(self.ask, request)

    async def close(self, grace_s: float) -> None:
        """Refuse new requests, finish the admitted within ``grace_s``, end lanes and backend."""
        if self._closing:
            return
        self._closing = True
        self._guard(self._dispatch)  # max_delay holds nothing back any more
        if not await self._replies.all_given(grace_s):
            self.cut_off()
        self._runner.stop()
        await run_in_thread(self._release, f"{self.spec.name}-close")

    def cut_off(self) -> None:
        """Answer everybody who still waits with UNAVAILABLE, now."""
        if len(self._replies):
            logger.warning("%s: %d requests cut off", self.spec.name, len(self._replies))
        self._answer_all(Code.UNAVAILABLE, "the server stopped before it could answer")

    def _release(self) -> None:
        if self._runner.join(timeout_s=1.0):
            close(self._backend)
        else:
            logger.warning("%s: a lane is still inside the backend; not closed", self.spec.name)

    def _refuse_if_down(self) -> None:
        if self.failure is not None:
            raise ServingError(Code.UNAVAILABLE, f"model {self.spec.name!r} failed: {self.failure}")
        if self._closing:
            raise ServingError(Code.UNAVAILABLE, "the server is shutting down", retry_after_s=1.0)

    def _missed(self, missed: tuple[Missed, ...]) -> None:
        self._guard(lambda: self._observer.missed(self.spec.name, missed))

    def _arrived(self) -> None:
        if self._options.mode != "batch" or not self._lane_has_room():
            self._dispatch()
        elif not self._look_pending:
            # At the end of this turn of the loop: what else arrives in it shares the batch.
            self._look_pending = True
            self._loop.call_soon(self._guard, self._look)

    def _look(self) -> None:
        self._look_pending = False
        # What nothing stands in the way of is tried, whatever the forecast says: it may be wrong.
        alone = len(self._queue) == 1 and not len(self._runner)
        self._dispatch(inline=alone and self._may_run_inline(), look_ahead=not alone)

    def _may_run_inline(self) -> bool:
        """Return whether the one request that waits is too short to be worth a hand-off."""
        now, load = self._clock(), self._queue.up_to(self._options.priorities)
        return self._crowd < CROWD and self._runner.is_quick(load, now)

    def _dispatch(self, *, inline: bool = False, look_ahead: bool = True) -> None:
        """Give the lanes what waits; to be called whenever the queue or the lanes changed."""
        self._stop_waking()
        inline = (inline or self._options.mode == "inline") and not self.background
        run = self._run_inline if inline else self._runner.start
        while len(self._queue) and self._lane_has_room():
            now = self._clock()
            begins_s = now + self._runner.free_in_s(now)  # later than now if gathered ahead
            batch_s = self._forecast.at(now) if look_ahead else no_forecast
            lanes, enough_s = 1 if inline else max(1, self._runner.free), self._forecast.enough_s
            taken = self._queue.take(
                begins_s, at_once=self._closing, lanes=lanes, batch_s=batch_s, enough_s=enough_s
            )
            for piece in taken.expired:
                self._miss(piece)
            if taken.batch:
                for piece in taken.batch:
                    piece.waiting.handed_out += 1
                run(Job(taken.batch))
            elif taken.wake_s is not None:
                self._wake = self._loop.call_at(taken.wake_s, self._guard, self._dispatch)
                break
            elif not taken.expired:  # better a failed model than an event loop that spins
                raise RuntimeError("requests wait and the queue gives none")
        self._report_queue()

    def _report_queue(self) -> None:
        self._runner.adapt(self._queue.rows)
        self._observer.queued(self.spec, self._queue.rows, len(self._queue), len(self._runner))

    def _stop_waking(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            wake.cancel()

    def _lane_has_room(self) -> bool:
        # Nothing that arrives later could still join a full batch: it may be gathered already.
        return self._runner.free > 0 or (self._runner.can_gather_ahead and self._queue.full)

    def _wanted(self, piece: Piece) -> bool:
        return self._replies.owed(piece.waiting)

    def _run_inline(self, job: Job) -> None:
        self._runner.run_inline(job)
        ended_s = self._clock()
        self._conclude(job, inline=True)
        self._later(lambda: self._runner.learn(job, ended_s))

    def _job_done(self, job: Job) -> None:
        if not job.lost:
            self._guard(self._dispatch)  # first: lanes must not wait while answers are handed out
        self._conclude(job)

    def _conclude(self, job: Job, *, inline: bool = False) -> None:
        self._guard(lambda: self._answer(job, inline=inline))
        if job.lost:
            self._fail(job.lost)

    def _answer(self, job: Job, *, inline: bool) -> None:
        ran: list[tuple[Piece, float]] = []
        for piece, outcome in zip(job.pieces, job.outcomes, strict=True):
            piece.waiting.handed_out -= 1
            if outcome is None:
                self._not_run(piece, self._why_unwanted(piece.waiting))
                continue
            piece.waiting.begun = True
            queue_s = job.started_s - piece.waiting.arrived_s
            ran.append((piece, queue_s))
            answer = answer_of(self.spec, piece.waiting.request, outcome, queue_s)
            self._replies.give_part(piece, answer)
            if isinstance(answer, ServingError) and not piece.whole:
                self._queue.remove(piece.waiting)  # nobody waits for the rest of it
                self._guard(self._dispatch)
        if ran:
            self._learn(ran[0][0].waiting)
            (self._later if inline else self._guard)(lambda: self._observe(job, ran))

    def _observe(self, job: Job, ran: list[tuple[Piece, float]]) -> None:
        self._crowd += 0.1 * (len(ran) - self._crowd)
        self._observer.computed(record_of(self.spec, job, ran))

    def _learn(self, waiting: Waiting) -> None:
        """Compare how long the request was expected to take with what it took, or has so far."""
        # Else nothing was expected, or only a part of it is over.
        if waiting.expected_s and waiting.ids_before is None:
            took_s = self._clock() - waiting.arrived_s
            self._forecast.came_true(waiting.expected_s, took_s, waiting.request.priority)

    def _expire(self, waiting: Waiting) -> None:
        never_ran = self._queue.remove(waiting)  # else it runs, and its answer comes too late
        self._replies.give(waiting, too_late(waiting))
        if never_ran:
            self._learn(waiting)
            self._dropped("deadline")
        self._guard(self._dispatch)

    def _abandon(self, waiting: Waiting) -> None:
        self._replies.abandon(waiting)
        if self._queue.remove(waiting):
            self._dropped("cancelled")
        self._guard(self._dispatch)

    def _miss(self, piece: Piece) -> None:
        """Answer a request that the queue gave up: its deadline has passed, or is too near."""
        self._learn(piece.waiting)
        self._replies.give(piece.waiting, too_late(piece.waiting))
        self._not_run(piece, "deadline")

    def _not_run(self, piece: Piece, reason: DropReason) -> None:
        # Lanes may begin the pieces of one request in any order: the last to come back decides.
        if not piece.waiting.begun and not piece.waiting.handed_out:
            self._dropped(reason)

    def _why_unwanted(self, waiting: Waiting) -> DropReason:
        if self._closing or self.failure is not None:
            return "draining"
        return "deadline" if waiting.deadline_s <= self._clock() else "cancelled"

    def _dropped(self, reason: DropReason) -> None:
        self._guard(lambda: self._observer.dropped(self.spec.name, reason))

    def _later(self, step: Callable[[], None]) -> None:
        """Take ``step`` once who has just been answered has sent the answer: it is waited for.

        Not in the next turn of the loop, where the task is woken: what it writes leaves at its end.
        """
        self._loop.call_soon(self._loop.call_soon, self._guard, step)

    def _guard(self, step: Callable[[], None]) -> None:
        """Take ``step``; a fault in the batcher itself fails the model instead of stranding all."""
        try:
            step()
        except Exception:  # supervision, the one place in the core besides execute.py
            logger.exception("%s: batching failed", self.spec.name)
            self._fail("batching failed")

    def _fail(self, reason: str) -> None:
        if self.failure is not None:
            return
        logger.error("%s: failed: %s", self.spec.name, reason)
        self.failure = reason
        self._answer_all(Code.INTERNAL, f"model {self.spec.name!r} failed: {reason}")
        self._changed()

    def _answer_all(self, code: Code, detail: str) -> None:
        self._stop_waking()
        drained = self._queue.drain()
        self._replies.give_all(code, detail)
        for piece in drained:
            self._not_run(piece, "draining")
        for piece in [piece for job in self._runner.forget_unbegun() for piece in job.pieces]:
            piece.waiting.handed_out -= 1
            self._not_run(piece, "draining")
        self._guard(self._report_queue)
