"""Call a backend and trust nothing it does: the places where ``except Exception`` belongs."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.backend import Backend
from scheduler.errors import Code, LoadError, ServingError
from scheduler.types import Array, Batch, InferRequest, ModelSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One request's share of a batch: its outputs (views), or the error to answer with."""

    result: Mapping[str, Array] | ServingError
    compute_s: float
    batch_rows: int


def load(backend: Backend) -> None:
    """Let the backend load. Raises LoadError and nothing else."""
    try:
        backend.load()
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(f"the model failed to load: {error!r}") from error


def close(backend: Backend) -> None:
    """Let the backend release everything; if it cannot, only the log hears of it."""
    try:
        backend.close()
    except Exception:
        logger.exception("%s: close failed", backend.spec.name)


def check(backend: Backend, request: InferRequest) -> None:
    """Let the backend refuse ``request``. Raises ServingError and nothing else."""
    try:
        backend.check(request)
    except ServingError:
        raise
    except Exception as error:
        logger.exception("request %s: check failed", request.id)
        raise _internal() from error


def execute(backend: Backend, batch: Batch) -> tuple[Outcome, ...]:
    """Run ``batch``; if it fails, run its requests one by one so that only the guilty fail."""
    started_s = time.perf_counter()
    try:
        outputs = _checked(backend.spec, batch, backend.run(batch))
    except Exception as error:
        if len(batch.requests) == 1:
            logger.exception("request %s: backend failed", batch.requests[0].id)
            failure = error if isinstance(error, ServingError) else _internal()
            return (Outcome(failure, time.perf_counter() - started_s, batch.rows),)
        logger.warning("batch of %d failed, running each alone: %r", len(batch.requests), error)
    else:
        compute_s = time.perf_counter() - started_s
        return tuple(
            Outcome({name: array[rows] for name, array in outputs.items()}, compute_s, batch.rows)
            for rows in batch.slices()
        )
    return tuple(
        outcome for request in batch.requests for outcome in execute(backend, Batch((request,)))
    )


def _checked(spec: ModelSpec, batch: Batch, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs that ``spec`` names. Raises ValueError if one is not as it says."""
    for tensor in spec.outputs:
        array = outputs.get(tensor.name)
        if array is None:
            raise ValueError(f"output {tensor.name!r} is missing; got {sorted(outputs)}")
        if array.dtype != tensor.dtype or array.shape[:1] != (batch.rows,):
            raise ValueError(
                f"output {tensor.name!r}: expected {tensor.dtype} with {batch.rows} rows,"
                f" got {array.dtype} with shape {array.shape}"
            )
    return {tensor.name: outputs[tensor.name] for tensor in spec.outputs}


def _internal() -> ServingError:
    return ServingError(Code.INTERNAL, "the model failed on this request; the server log says why")
