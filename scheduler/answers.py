"""Turn what a batch came to into each request's answer."""

from collections.abc import Sequence

import numpy as np

from scheduler.errors import Code, ServingError
from scheduler.execute import Outcome
from scheduler.lanes import Job
from scheduler.observer import Computed
from scheduler.types import InferRequest, InferResponse, ModelSpec, Timing
from scheduler.waiting import Piece, Waiting


def answer_of(
    spec: ModelSpec, request: InferRequest, outcome: Outcome, queue_s: float
) -> InferResponse | ServingError:
    """Return the answer to ``request``: the outputs it asked for, or the error."""
    result = outcome.result
    if isinstance(result, ServingError):
        return result
    outputs = {name: result[name] for name in request.outputs} if request.outputs else result
    timing = Timing(queue_s, outcome.compute_s, outcome.batch_rows, outcome.gather_s)
    return InferResponse(spec.name, spec.version, outputs, timing)


def answer_to_nothing(spec: ModelSpec, request: InferRequest) -> InferResponse:
    """Return the answer to a request of no rows, which no backend need see."""
    outputs = {
        tensor.name: np.empty(
            [0 if isinstance(dim, str) else dim for dim in tensor.shape], tensor.dtype
        )
        for tensor in spec.outputs
        if tensor.name in request.outputs or not request.outputs
    }
    return InferResponse(spec.name, spec.version, outputs, Timing(0.0, 0.0, 0))


def too_late(waiting: Waiting) -> ServingError:
    """Return the answer to a request whose deadline has passed."""
    return not_within(waiting.request.timeout_s)


def not_within(timeout_s: float) -> ServingError:
    """Return the answer to a request that had ``timeout_s`` seconds."""
    timeout_ms = timeout_s * 1e3
    return ServingError(Code.DEADLINE_EXCEEDED, f"not answered within {timeout_ms:g} ms (timeout)")


def record_of(spec: ModelSpec, job: Job, ran: Sequence[tuple[Piece, float]]) -> Computed:
    """Return what the observer hears of a job: its pieces that ran, and how long each waited."""
    return Computed(
        spec.name,
        rows=job.rows,
        ids=job.ids,
        lane=job.lane,
        gather_s=job.gather_s,
        compute_s=job.compute_s,
        queue_s=tuple([queue_s for _, queue_s in ran]),
        version=spec.version,
        started_s=job.started_s,
        ahead=job.ahead,
        traces=tuple([piece.waiting.request.trace for piece, _ in ran]),
    )
