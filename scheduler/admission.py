"""Let a request in, or say at once why not."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from scheduler.backend import Backend
from scheduler.errors import Code, Missed, ServingError, invalid
from scheduler.execute import check
from scheduler.observer import DropReason
from scheduler.options import SchedulerOptions
from scheduler.queue import RequestQueue
from scheduler.rows import count_ids, id_inputs, ids_before
from scheduler.runner import Runner
from scheduler.types import InferRequest, ModelSpec
from scheduler.validate import validate
from scheduler.waiting import Limits, Load, Waiting

# The share of its timeout within which an admitted request is expected to be answered. What is
# left keeps batches large: requests with no time to spare could only be served a few at a time.
TIMEOUT_SHARE = 0.8


class Admission:
    """Put the requests of one model into its queue; ``dropped`` hears of those refused there."""

    def __init__(
        self,
        backend: Backend,
        spec: ModelSpec,
        options: SchedulerOptions,
        queue: RequestQueue,
        runner: Runner,
        dropped: Callable[[DropReason], None],
    ) -> None:
        self._backend = backend
        self._spec = spec
        self._options = options
        self._queue = queue
        self._runner = runner
        self._dropped = dropped
        self._limits: Limits = options.limits(spec)
        self._id_inputs = id_inputs(spec)
        self._optional = tuple(tensor.name for tensor in spec.inputs if tensor.optional)

    def check(
        self, request: InferRequest, missed: Callable[[tuple[Missed, ...]], None]
    ) -> InferRequest:
        """Refuse a request that the model cannot take; return the one to run.

        ``missed`` hears of ids without a row, also of those refused. Raises ServingError.
        """
        validate(self._spec, request, self._options.priorities)
        try:
            checked = check(self._backend, request)
        except ServingError as refusal:
            if refusal.missed:
                missed(refusal.missed)
            raise
        if checked is None:
            return request
        if checked.missed:
            missed(checked.missed)
        return checked.request

    def admit(self, request: InferRequest, now: float) -> Waiting:
        """Put a checked request into the queue, arriving ``now``. Raises ServingError.

        INVALID_REQUEST if one row of it is too much for a batch, OVERLOADED if the queue is full
        or too long for its timeout, PAYLOAD_TOO_LARGE if no queue could hold it.
        """
        ids = count_ids(self._id_inputs, request.inputs)
        waiting = Waiting(
            request,
            arrived_s=now,
            deadline_s=now + request.timeout_s,
            ids=ids,
            ids_before=self._ids_before(request, ids),
            group=self._group(request),
            expected_s=self._expected_s(request, ids, now),
        )
        try:
            self._queue.push(waiting)
        except ServingError as refusal:
            if refusal.code is Code.OVERLOADED:
                refusal.retry_after_s = self._backlog_s(now)
            self._dropped("queue_full")
            raise
        return waiting

    def _group(self, request: InferRequest) -> tuple[str, ...]:
        """Return what requests that share a batch have in common: the optional inputs given."""
        if not self._optional:
            return ()
        return tuple([name for name in self._optional if name in request.inputs])

    def _ids_before(self, request: InferRequest, ids: int) -> npt.NDArray[np.int64] | None:
        """Return where a request that is larger than a batch can be split."""
        limit = self._limits.max_batch_ids
        if request.rows <= self._limits.max_batch_rows and ids <= limit:
            return None
        before = ids_before(self._id_inputs, request)
        counts = np.diff(before)
        row = int(counts.argmax())
        if counts[row] > limit:
            raise invalid(
                f"rows: row {row} has {counts[row]} ids, above the limit of {limit} ids"
                " (max_batch_ids)"
            )
        return before

    def _expected_s(self, request: InferRequest, ids: int, now: float) -> float:
        """Return the forecast of when the answer comes, 0 if there is none.

        Raises ServingError with OVERLOADED if that is too late.
        """
        runner, timeout_s = self._runner, request.timeout_s
        if timeout_s == math.inf or not self._options.refuse_late:
            return 0.0
        if not runner.forecast.known(now) or (runner.free and not len(self._queue)):
            return 0.0  # what nothing stands in the way of is tried
        load = self._queue.up_to(request.priority, Load(1, request.rows, ids))
        expected_s = runner.forecast.all_s(load, runner.under_way_s(now), request.priority)
        if expected_s > TIMEOUT_SHARE * timeout_s:
            self._dropped("predicted_late")
            raise ServingError(
                Code.OVERLOADED,
                f"timeout: an answer would take about {expected_s * 1e3:.3g} ms, above"
                f" {TIMEOUT_SHARE * timeout_s * 1e3:.3g} ms, which is {TIMEOUT_SHARE:.0%} of the"
                f" timeout of {timeout_s * 1e3:g} ms (refuse_late)",
                retry_after_s=expected_s - TIMEOUT_SHARE * timeout_s,
            )
        return expected_s

    def _backlog_s(self, now: float) -> float | None:
        """Return the seconds until all that waits is computed, if they can be known."""
        forecast, classes = self._runner.forecast, self._options.priorities
        if not forecast.known(now):
            return None
        everything, under_way_s = self._queue.up_to(classes), self._runner.under_way_s(now)
        return forecast.all_s(everything, under_way_s, priority=classes - 1)
