"""One served model's embedding updates: in order, each once, whole or not at all."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from scheduler.backend import Backend, TableSpec, Updatable
from scheduler.deltas import Delta, check_delta
from scheduler.errors import Code, ServingError, invalid
from scheduler.execute import replace_rows, restore_rows, tables_of
from scheduler.observer import Observer, Updated, UpdateOutcome
from scheduler.pace import Pace, always
from scheduler.threads import Worker
from scheduler.types import ModelSpec

T = TypeVar("T")
Outcome: TypeAlias = Literal["applied", "already_applied"]
# Deltas that are remembered by name; older ones are told by their base.
REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Applied:
    """One delta of a model: the ``sequence`` it led to, its rows, how long it took, when.

    ``at_s`` is seconds after 1970.
    """

    model: str
    version: str
    id: str
    outcome: Outcome
    sequence: int
    rows: int
    seconds: float
    at_s: float


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What a rollback did; the sequence is 0 again."""

    model: str
    version: str
    rows: int
    deltas: int


class Updates:
    """Apply deltas to ``backend``, one at a time; ``sequence`` counts those since it was loaded.

    What is under way goes on if whoever asked for it leaves. ``idle`` says, on any thread, whether
    no batch computes.
    """

    def __init__(
        self,
        backend: Backend,
        spec: ModelSpec,
        observer: Observer,
        idle: Callable[[], bool] = always,
    ) -> None:
        self.spec = spec
        self.idle = idle
        self.sequence = 0
        self.rows = 0  # in all deltas applied
        self._backend = backend
        self._observer = observer
        self._turn = asyncio.Lock()
        self._worker = Worker(f"{spec.name}-update")
        self._applied: dict[str, Applied] = {}
        self._work: set[asyncio.Task[Any]] = set()

    @property
    def applied(self) -> Sequence[Applied]:
        """The deltas applied since the model was loaded or rolled back; the oldest may be gone."""
        return tuple(self._applied.values())

    def tables(self) -> tuple[TableSpec, ...]:
        """Return what can be updated. Raises ServingError (UNSUPPORTED)."""
        return tables_of(self._updatable())

    async def apply(self, delta: Delta) -> Applied:
        """Apply ``delta``, or say that it has been. Raises ServingError, and nothing changed."""
        return await self._whole(self._apply(delta))

    async def roll_back(self) -> RolledBack:
        """Restore every row as it was loaded. Raises ServingError."""
        return await self._whole(self._roll_back())

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._work.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also if nobody waits any more

    async def _apply(self, delta: Delta) -> Applied:
        async with self._turn:
            outcome: UpdateOutcome = "refused"
            rows, started_s = 0, time.perf_counter()
            try:
                applied = self._known(delta) or await self._write(delta)
                outcome, rows = applied.outcome, delta.rows if applied.outcome == "applied" else 0
            except ServingError as error:
                outcome = "failed" if error.code is Code.INTERNAL else "refused"
                raise
            finally:
                self._tell(outcome, rows, time.perf_counter() - started_s)
            return applied

    def _known(self, delta: Delta) -> Applied | None:
        known = self._applied.get(delta.id)
        if known is not None:
            return replace(known, outcome="already_applied")
        if delta.base is not None and delta.base != self.sequence:
            raise invalid(
                f"base is {delta.base}; {self.spec.name!r}, version {self.spec.version!r}, is at "
                f"{self.sequence} (deltas applied since it was loaded)"
            )
        return None

    async def _write(self, delta: Delta) -> Applied:
        backend, started_s = self._updatable(), time.perf_counter()

        def write() -> None:
            pace = Pace(self.idle)
            pace.wait_for_idle()
            check_delta(delta, tables_of(backend), pace.rest)
            pace.wait_for_idle()
            replace_rows(backend, delta.tables)

        await self._worker.run(write)
        self.sequence += 1
        self.rows += delta.rows
        seconds = time.perf_counter() - started_s
        applied = Applied(
            self.spec.name, self.spec.version, delta.id, "applied", self.sequence, delta.rows,
            seconds, time.time(),
        )  # fmt: skip
        self._applied[delta.id] = applied
        if len(self._applied) > REMEMBERED:
            del self._applied[next(iter(self._applied))]
        return applied

    async def _roll_back(self) -> RolledBack:
        async with self._turn:
            backend, started_s = self._updatable(), time.perf_counter()
            rows = await self._worker.run(lambda: restore_rows(backend))
            done = RolledBack(self.spec.name, self.spec.version, rows, self.sequence)
            self.sequence = self.rows = 0
            self._applied.clear()
            self._tell("rolled_back", rows, time.perf_counter() - started_s)
            return done

    def _updatable(self) -> Updatable:
        if not isinstance(self._backend, Updatable):
            raise ServingError(
                Code.UNSUPPORTED,
                f"model {self.spec.name!r}: its backend takes no embedding updates",
            )
        return self._backend

    def _tell(self, outcome: UpdateOutcome, rows: int, seconds: float) -> None:
        self._observer.updated(
            Updated(self.spec.name, self.spec.version, outcome, rows, seconds, self.sequence)
        )
