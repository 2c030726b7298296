"""One model's requests: admit, wait, batch, run, answer. The async shell around the queue.

Event-driven on one loop: a push or a finished lane looks at the queue, so an idle lane starts at
once and a busy one finds everything that arrived meanwhile.
"""

import asyncio
import logging
import time
from collections.abc import Callable

import numpy as np

from scheduler.backend import Backend
from scheduler.errors import Code, ServingError
from scheduler.execute import Outcome, check, close
from scheduler.lane import Lane, run_in_thread
from scheduler.observer import DropReason, Observer
from scheduler.options import SchedulerOptions
from scheduler.queue import RequestQueue, Waiting
from scheduler.replies import Replies
from scheduler.types import Batch, InferRequest, InferResponse, ModelSpec, Timing
from scheduler.validate import validate

logger = logging.getLogger(__name__)


class Scheduler:
    """Batch continuously over the lanes of one loaded backend.

    ``changed`` is called if the scheduler fails; ``failure`` then says why, for good.
    """

    def __init__(
        self,
        backend: Backend,
        options: SchedulerOptions,
        observer: Observer,
        changed: Callable[[], None],
    ) -> None:
        self.spec: ModelSpec = backend.spec
        self.failure: str | None = None
        self._backend = backend
        self._observer = observer
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._queue = RequestQueue(options.limits(self.spec))
        self._replies = Replies(self._expire)
        self._lanes = [
            Lane(backend, f"{self.spec.name}-lane-{number}", self._lane_done, self._lane_died)
            for number in range(backend.lanes)
        ]
        self._idle = list(self._lanes)
        self._running: dict[Lane, tuple[tuple[Waiting, ...], float]] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._closing = False
        # Lately, older batches counting less and less; only Retry-After reads them.
        self._recent_rows = self._recent_compute_s = 0.0

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer ``request``; cancelling the awaiting task cancels it. Raises ServingError."""
        self._refuse_if_down()
        validate(self.spec, request)
        check(self._backend, request)
        if request.rows == 0:
            return self._answer_to_nothing(request)
        waiting = self._admit(request)
        answer = self._replies.open(waiting)
        self._guard(self._dispatch)
        try:
            return await answer
        except asyncio.CancelledError:
            self._abandon(waiting)
            raise
        finally:
            del answer  # an error's traceback holds this frame: without the cycle both go at once

    async def close(self, grace_s: float) -> None:
        """Refuse new requests, finish the admitted within ``grace_s``, end lanes and backend."""
        if self._closing:
            return
        self._closing = True
        self._guard(self._dispatch)  # max_delay holds nothing back any more
        if not await self._replies.all_given(grace_s):
            self.cut_off()
        for lane in self._lanes:
            lane.stop()
        await run_in_thread(self._release, f"{self.spec.name}-close")

    def cut_off(self) -> None:
        """Answer everybody who still waits with UNAVAILABLE, now."""
        if len(self._replies):
            logger.warning("%s: %d requests cut off", self.spec.name, len(self._replies))
        self._answer_all(Code.UNAVAILABLE, "the server stopped before it could answer")

    def _release(self) -> None:
        give_up_s = time.monotonic() + 1.0
        stuck = [lane for lane in self._lanes if not lane.join(give_up_s - time.monotonic())]
        if stuck:
            logger.warning("%s: a lane is still inside the backend; not closed", self.spec.name)
        else:
            close(self._backend)

    def _refuse_if_down(self) -> None:
        if self.failure is not None:
            raise ServingError(Code.UNAVAILABLE, f"model {self.spec.name!r} failed: {self.failure}")
        if self._closing:
            raise ServingError(Code.UNAVAILABLE, "the server is shutting down")

    def _admit(self, request: InferRequest) -> Waiting:
        now = self._loop.time()
        waiting = Waiting(request, now, now + request.timeout_s, time.perf_counter())
        try:
            self._queue.push(waiting)
        except ServingError as refusal:
            self._dropped("queue_full")
            refusal.retry_after_s = self._expected_wait_s()
            raise
        return waiting

    def _expected_wait_s(self) -> float:
        if not self._recent_rows:
            return 0.0
        row_s = self._recent_compute_s / self._recent_rows
        return self._queue.rows * row_s / len(self._lanes)

    def _dispatch(self) -> None:
        """Give idle lanes what waits; to be called whenever the queue or the lanes changed."""
        if self._wake is not None:
            self._wake.cancel()
        while self._idle and len(self._queue):
            taken = self._queue.take(self._loop.time(), at_once=self._closing)
            for waiting in taken.expired:
                self._replies.give(waiting, _too_late(waiting))
                self._dropped("deadline")
            self._start(taken.batch)
            if taken.wake_s is not None:
                self._wake = self._loop.call_at(taken.wake_s, self._guard, self._dispatch)
                break
        self._observer.queued(self.spec.name, self._queue.rows)

    def _start(self, taken: tuple[Waiting, ...]) -> None:
        # A task cancelled in this turn of the loop has not run yet to leave the queue by itself.
        batch = tuple(filter(self._replies.owed, taken))
        for _ in range(len(taken) - len(batch)):
            self._dropped("cancelled")
        if batch:
            lane = self._idle.pop()
            self._running[lane] = (batch, time.perf_counter())
            lane.submit(_batch_of(batch))

    def _lane_done(self, lane: Lane, outcomes: tuple[Outcome, ...]) -> None:
        batch, started_s = self._running.pop(lane)
        self._idle.append(lane)
        self._guard(self._dispatch)  # first: the lane must not wait while answers are handed out
        self._guard(lambda: self._answer(batch, started_s, outcomes))

    def _answer(
        self, batch: tuple[Waiting, ...], started_s: float, outcomes: tuple[Outcome, ...]
    ) -> None:
        timings = []
        for waiting, outcome in zip(batch, outcomes, strict=True):
            queue_s = started_s - waiting.stamp_s
            timing = Timing(queue_s, outcome.compute_s, outcome.batch_rows)
            self._replies.give(waiting, self._answer_to(waiting.request, outcome, timing))
            timings.append(timing)
        self._recent_rows = 0.9 * self._recent_rows + outcomes[0].batch_rows
        self._recent_compute_s = 0.9 * self._recent_compute_s + outcomes[0].compute_s
        self._observer.computed(self.spec.name, _batch_of(batch), tuple(timings))

    def _answer_to(
        self, request: InferRequest, outcome: Outcome, timing: Timing
    ) -> InferResponse | ServingError:
        result = outcome.result
        if isinstance(result, ServingError):
            return result
        outputs = {name: result[name] for name in request.outputs} if request.outputs else result
        return InferResponse(self.spec.name, self.spec.version, outputs, timing)

    def _answer_to_nothing(self, request: InferRequest) -> InferResponse:
        outputs = {
            tensor.name: np.empty(
                [0 if isinstance(dim, str) else dim for dim in tensor.shape], tensor.dtype
            )
            for tensor in self.spec.outputs
            if tensor.name in request.outputs or not request.outputs
        }
        return InferResponse(self.spec.name, self.spec.version, outputs, Timing(0.0, 0.0, 0))

    def _expire(self, waiting: Waiting) -> None:
        never_ran = self._queue.remove(waiting)  # else it runs, and its answer comes too late
        self._replies.give(waiting, _too_late(waiting))
        if never_ran:
            self._left("deadline")

    def _abandon(self, waiting: Waiting) -> None:
        self._replies.abandon(waiting)
        if self._queue.remove(waiting):
            self._left("cancelled")

    def _left(self, reason: DropReason) -> None:
        """Look at the queue anew after a request has left it without a lane."""
        self._dropped(reason)
        self._guard(self._dispatch)

    def _dropped(self, reason: DropReason) -> None:
        self._guard(lambda: self._observer.dropped(self.spec.name, reason))

    def _guard(self, step: Callable[[], None]) -> None:
        """Take ``step``; a fault in the batcher itself fails the model instead of stranding all."""
        try:
            step()
        except Exception:  # supervision, the one place in the core besides execute.py
            logger.exception("%s: batching failed", self.spec.name)
            self._fail("batching failed")

    def _lane_died(self, lane: Lane) -> None:
        self._running.pop(lane, None)
        self._fail("a compute thread ended")

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._answer_all(Code.INTERNAL, f"model {self.spec.name!r} failed: {reason}")
        self._changed()

    def _answer_all(self, code: Code, detail: str) -> None:
        drained = self._queue.drain()
        self._replies.give_all(code, detail)
        for _ in drained:
            self._dropped("draining")


def _batch_of(waiting: tuple[Waiting, ...]) -> Batch:
    return Batch(tuple(entry.request for entry in waiting))


def _too_late(waiting: Waiting) -> ServingError:
    timeout_ms = waiting.request.timeout_s * 1e3
    return ServingError(Code.DEADLINE_EXCEEDED, f"not answered within {timeout_ms:g} ms (timeout)")
