"""Model name -> scheduler; what transports hold."""

import asyncio
import re
from collections.abc import Callable

from scheduler.backend import Backend
from scheduler.errors import Code, LoadError, ServingError, shown
from scheduler.execute import load
from scheduler.lane import run_in_thread
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.scheduler import Scheduler
from scheduler.types import InferRequest, InferResponse, ModelSpec


class Engine:
    """Serve models to transports on one event loop.

    Life: ``load`` every backend, ``open``; later ``drain`` (not ready, still serving) and
    ``close`` (refuse new, finish the admitted).
    """

    def __init__(self, options: SchedulerOptions, observer: Observer) -> None:
        self.observer = observer
        self._options = options
        self._schedulers: dict[str, Scheduler] = {}
        self._watchers: list[Callable[[], None]] = []
        self._started = False
        self._draining = False

    @property
    def started(self) -> bool:
        """Every configured model has been loaded once."""
        return self._started

    @property
    def live(self) -> bool:
        """No model has failed for good; if one has, only a restart helps."""
        return all(scheduler.failure is None for scheduler in self._schedulers.values())

    @property
    def ready(self) -> bool:
        """New requests are welcome."""
        return self._started and self.live and not self._draining

    async def load(self, backend: Backend) -> None:
        """Load ``backend`` off the loop and serve its model. Raises LoadError."""
        await run_in_thread(lambda: load(backend), "load")
        self._check_loaded(backend)
        self._schedulers[backend.spec.name] = Scheduler(
            backend, self._options, self.observer, self._changed
        )

    def _check_loaded(self, backend: Backend) -> None:
        spec = backend.spec
        if not re.fullmatch(r"[A-Za-z0-9._-]+", spec.name):
            raise LoadError(
                f"model name {shown(spec.name)}: use letters, digits, '.', '_' and '-' only"
                " (--name), it becomes part of a URL"
            )
        if spec.name in self._schedulers:
            raise LoadError(f"two models are called {spec.name!r}; rename one")
        if backend.lanes < 1 or spec.max_batch_rows < 1:
            raise LoadError(
                f"model {spec.name!r}: lanes ({backend.lanes}) and max_batch_rows"
                f" ({spec.max_batch_rows}) must be at least 1"
            )

    def open(self) -> None:
        """Declare start-up complete."""
        self._started = True
        self._changed()

    def drain(self) -> None:
        """Turn readiness off and keep serving, while load balancers look elsewhere."""
        self._draining = True
        self._changed()

    def cut_off(self) -> None:
        """Answer everybody who still waits with UNAVAILABLE, now."""
        for scheduler in self._schedulers.values():
            scheduler.cut_off()

    async def close(self, grace_s: float) -> None:
        """Refuse new requests, answer the admitted within ``grace_s`` seconds, release models."""
        self.drain()
        async with asyncio.TaskGroup() as group:
            for scheduler in self._schedulers.values():
                group.create_task(scheduler.close(grace_s))

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on the loop after readiness may have changed; return an undo."""
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def specs(self) -> tuple[ModelSpec, ...]:
        """Return the models being served."""
        return tuple(scheduler.spec for scheduler in self._schedulers.values())

    def spec(self, model: str) -> ModelSpec:
        """Return one model's spec; an empty name is the only model. Raises ServingError."""
        return self._scheduler(model).spec

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer ``request``; cancelling the awaiting task cancels it. Raises ServingError."""
        return await self._scheduler(request.model).infer(request)

    def _scheduler(self, model: str) -> Scheduler:
        if not self._started:
            raise ServingError(Code.UNAVAILABLE, "the model is still loading", retry_after_s=1.0)
        if not model and len(self._schedulers) == 1:
            return next(iter(self._schedulers.values()))
        scheduler = self._schedulers.get(model)
        if scheduler is None:
            served = ", ".join(self._schedulers)
            raise ServingError(Code.MODEL_NOT_FOUND, f"no model {shown(model)}; served: {served}")
        return scheduler

    def _changed(self) -> None:
        for callback in tuple(self._watchers):
            callback()
