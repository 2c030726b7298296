"""Call a backend and trust nothing it does: the places where ``except Exception`` belongs."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from scheduler.backend import Backend, Checked, Compute, TableRows, TableSpec, Updatable
from scheduler.errors import Code, DeviceLostError, LoadError, ServingError
from scheduler.types import Array, Batch, InferRequest, ModelSpec, TensorSpec

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Outcome:
    """One request's share of a batch: its outputs (views), or the error to answer with."""

    def __init__(
        self,
        result: Mapping[str, Array] | ServingError,
        gather_s: float,
        compute_s: float,
        batch_rows: int,
    ) -> None:
        self.result = result
        self.gather_s = gather_s
        self.compute_s = compute_s
        self.batch_rows = batch_rows


def load(backend: Backend) -> None:
    """Let the backend load. Raises LoadError and nothing else."""
    try:
        backend.load()
    except LoadError:
        raise
    except BaseException as error:  # SystemExit too: it would end the process through the loop
        raise LoadError(f"the model failed to load: {error!r}") from error


def load_new(make: Callable[[], Backend]) -> Backend:
    """Return a backend made by ``make`` and loaded. Raises LoadError and nothing else."""
    try:
        backend = make()
    except LoadError:
        raise
    except BaseException as error:
        raise LoadError(f"the backend cannot be made: {error!r}") from error
    load(backend)
    return backend


def close(backend: Backend) -> None:
    """Let the backend release everything; if it cannot, only the log hears of it."""
    try:
        backend.close()
    except BaseException:
        logger.exception("a backend's close failed")


def check(backend: Backend, request: InferRequest) -> Checked | None:
    """Let the backend refuse ``request``, or put another in its place.

    Raises ServingError and nothing else.
    """
    try:
        return backend.check(request)
    except ServingError:
        raise
    except BaseException as error:  # SystemExit too: this is the event loop's own thread
        logger.exception("request %s: check failed", request.id)
        raise _internal() from error


def tables_of(backend: Updatable) -> tuple[TableSpec, ...]:
    """Ask for the tables that can be updated. Raises ServingError and nothing else."""
    return _asked(backend.update_tables)


def replace_rows(backend: Updatable, tables: Sequence[TableRows]) -> None:
    """Let the backend replace rows. Raises ServingError and nothing else."""

    def step() -> None:
        write = backend.prepare_update(tables)
        write()

    _asked(step)


def restore_rows(backend: Updatable) -> int:
    """Let the backend restore what was loaded. Raises ServingError and nothing else."""
    return _asked(backend.roll_back)


def _asked(step: Callable[[], T]) -> T:
    try:
        return step()
    except ServingError:
        raise
    except BaseException as error:
        logger.exception("an embedding update failed")
        raise _internal() from error


_NOT_RUN: Final = Outcome({}, 0.0, 0.0, 0)


class Prepared:
    """A batch gathered ahead, how to compute it and what gathering took (seconds)."""

    def __init__(self, batch: Batch, compute: Compute, gather_s: float) -> None:
        self.batch = batch
        self.compute = compute
        self.gather_s = gather_s


def prepare(backend: Backend, batch: Batch) -> Prepared | None:
    """Gather ``batch`` ahead; None if that fails: it is tried again when the batch runs."""
    try:
        return _gathered(backend, batch)
    except Exception as error:
        logger.warning("gathering a batch of %d ahead failed: %r", len(batch.requests), error)
        return None


# Some requests of a batch: the number of the first, and themselves.
Part: TypeAlias = tuple[int, Batch]


def execute(backend: Backend, batch: Batch, prepared: Prepared | None = None) -> "Execution":
    """Run ``batch``, computing what was ``prepared`` of it ahead; return what came of it.

    If a batch of several fails, its halves run, and the failing half's halves, until only the
    guilty requests fail. Breadth first: those far from a guilty request are served first.
    """
    requests = len(batch.requests)
    execution = Execution(backend, requests)
    if requests == 1:
        execution.run(0, batch, prepared)
        return execution
    parts: deque[Part] = deque([(0, batch)])
    # Four guilty among any number are found, each for two runs a halving; beyond that a large batch
    # that fails everywhere must not hold its lane for twice as many runs as requests.
    runs_left = 8 * math.ceil(math.log2(requests)) + 1
    while parts and runs_left and not execution.lost:
        runs_left -= 1
        parts += execution.run(*parts.popleft(), prepared)
        prepared = None
    for first, part in parts:
        execution.fail(first, part, _internal())
    return execution


class Execution:
    """What came of one batch: ``outcomes`` has one entry per request.

    ``lost`` says why the device is of no use any more, if it is. Times are those of all ``runs``
    together.
    """

    def __init__(self, backend: Backend, requests: int) -> None:
        self.outcomes = [_NOT_RUN] * requests
        self.lost = ""
        self.runs = 0
        self.gather_s = 0.0
        self.compute_s = 0.0
        self._backend = backend

    def run(self, first: int, batch: Batch, prepared: Prepared | None) -> tuple[Part, ...]:
        """Run ``batch``, the requests from ``first`` on; return what else to run, if it fails."""
        self.runs += 1
        started_s = time.perf_counter()
        try:
            prepared = prepared or _gathered(self._backend, batch)
            started_s = time.perf_counter()
            outputs = _checked(self._backend.spec, batch, prepared.compute())
        except DeviceLostError as loss:
            logger.exception("%s: the device is lost", self._backend.spec.name)
            self.lost = str(loss) or "the device is lost"
            self.fail(first, batch, _internal(), self._computed(started_s))
        except Exception as error:
            return self._failed(first, batch, error, self._computed(started_s))
        else:
            self.gather_s += prepared.gather_s
            compute_s, batch_rows = self._computed(started_s), batch.rows
            if len(batch.requests) == 1:
                self.outcomes[first] = Outcome(outputs, prepared.gather_s, compute_s, batch_rows)
                return ()
            for number, rows in enumerate(batch.slices(), first):
                own = {name: array[rows] for name, array in outputs.items()}
                self.outcomes[number] = Outcome(own, prepared.gather_s, compute_s, batch_rows)
        return ()

    def lose(self, why: str) -> None:
        """Let every request end with an error: the device is lost, or the thread that ran them."""
        self.lost = why
        self.outcomes = [Outcome(_internal(), 0.0, 0.0, 0)] * len(self.outcomes)

    def fail(self, first: int, batch: Batch, error: ServingError, elapsed_s: float = 0.0) -> None:
        """Let every request of ``batch``, which are those from ``first`` on, end with ``error``."""
        outcome = Outcome(error, 0.0, elapsed_s, batch.rows)
        count = len(batch.requests)
        self.outcomes[first : first + count] = [outcome] * count

    def _failed(
        self, first: int, batch: Batch, error: Exception, elapsed_s: float
    ) -> tuple[Part, ...]:
        requests = batch.requests
        if len(requests) > 1:
            logger.warning("batch of %d failed, running its halves: %r", len(requests), error)
            half = len(requests) // 2
            return (first, Batch(requests[:half])), (first + half, Batch(requests[half:]))
        logger.error("request %s: backend failed", requests[0].id, exc_info=error)
        refusal = error if isinstance(error, ServingError) else _internal()
        self.fail(first, batch, refusal, elapsed_s)
        return ()

    def _computed(self, started_s: float) -> float:
        elapsed_s = time.perf_counter() - started_s
        self.compute_s += elapsed_s
        return elapsed_s


def _gathered(backend: Backend, batch: Batch) -> Prepared:
    started_s = time.perf_counter()
    compute = backend.prepare(batch)
    return Prepared(batch, compute, time.perf_counter() - started_s)


def _checked(spec: ModelSpec, batch: Batch, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs that ``spec`` names. Raises ValueError if one is not as it says."""
    for tensor in spec.outputs:
        array = outputs.get(tensor.name)
        if array is None:
            raise ValueError(f"output {tensor.name!r} is missing; got {sorted(outputs)}")
        if not _fits(tensor, array, batch.rows):
            raise ValueError(
                f"output {tensor.name!r}: expected {tensor.dtype} with {batch.rows} rows,"
                f" got {array.dtype} with shape {array.shape}; the model says {tensor.shape}"
            )
    return {tensor.name: outputs[tensor.name] for tensor in spec.outputs}


def _fits(tensor: TensorSpec, array: Array, rows: int) -> bool:
    shape, wanted = array.shape, tensor.shape
    if array.dtype != tensor.dtype or len(shape) != len(wanted) or shape[0] != rows:
        return False
    for axis in range(1, len(wanted)):
        dim = wanted[axis]
        if not isinstance(dim, str) and shape[axis] != dim:
            return False
    return True


def _internal() -> ServingError:
    return ServingError(Code.INTERNAL, "the model failed on this request; the server log says why")
