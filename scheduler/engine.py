"""Model name -> scheduler; what transports hold."""

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial

from scheduler.access import Access
from scheduler.asking import Asked, Asker, awaited
from scheduler.backend import Backend
from scheduler.companions import Companions
from scheduler.control import ModelControl, Refused
from scheduler.errors import LoadError
from scheduler.execute import close, load
from scheduler.lanes import Clock
from scheduler.models import Models, check_loaded, still_loading
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.regions import Regions
from scheduler.reload import Remake, load_again
from scheduler.routing import Routes
from scheduler.scheduler import Scheduler
from scheduler.threads import run_in_thread
from scheduler.types import InferRequest, InferResponse, ModelSpec
from scheduler.updates import Updates
from scheduler.versions import Versions


class Engine:
    """Serve models, each with a scheduler and lanes of its own, to transports on one event loop.

    Life: ``load`` every backend, ``open``; then ``load``, ``swap`` and ``unload`` as wanted while
    traffic flows; later ``drain`` (not ready, still serving) and ``close`` (refuse new, finish the
    admitted). ``options`` hold for every model that does not bring its own.
    """

    def __init__(
        self, options: SchedulerOptions, observer: Observer, clock: Clock = time.monotonic
    ) -> None:
        self.observer = observer
        self.control: ModelControl | None = None  # set where clients may load and unload models
        self.companions: Companions | None = None
        self.access: Access | None = None  # set where clients need API keys
        self.regions: Regions | None = None  # set where clients may use shared memory
        self.refused: tuple[Refused, ...] = ()  # what should be served and is not, and why
        self._options = options
        self._clock = clock
        self._models = Models(observer)
        self._watchers: list[Callable[[], None]] = []
        self._reloads: dict[Scheduler, asyncio.Task[None]] = {}
        self._leaving: dict[Scheduler, asyncio.Task[None]] = {}  # no new requests, some old ones
        self._started = False
        self._draining = False
        self._closed = False

    @property
    def started(self) -> bool:
        """Every configured model has been loaded once."""
        return self._started

    @property
    def live(self) -> bool:
        """No model has failed for good; if one has, only a restart helps."""
        return all(
            scheduler.failure is None or scheduler in self._reloads or scheduler.background
            for scheduler in self._schedulers()
        )

    @property
    def ready(self) -> bool:
        """New requests are welcome."""
        failed = any(
            scheduler.failure is not None and not scheduler.background
            for scheduler in self._schedulers()
        )
        return self._started and not failed and not self._draining

    @property
    def draining(self) -> bool:
        """Whether readiness is off for good, because the server is about to stop."""
        return self._draining

    async def load(
        self,
        backend: Backend,
        options: SchedulerOptions | None = None,
        remake: Remake | None = None,
    ) -> None:
        """Load ``backend`` off the loop and serve it: a new model, or a new version of one.

        Requests that name no version get the one loaded last. ``remake`` makes the backend anew
        if it fails and ``on_failure`` is reload. Raises LoadError.
        """
        await self._load(backend, self._check_new)
        self._serve(backend, options, remake)

    async def swap(
        self,
        backend: Backend,
        options: SchedulerOptions | None = None,
        remake: Remake | None = None,
        *,
        grace_s: float = 30.0,
        others: bool = True,
    ) -> None:
        """Load ``backend``, then let it take over from every version of its model.

        Without ``others`` only from the same version, if that is served. Requests that those have
        admitted are answered by them, within ``grace_s`` seconds; no request is refused meanwhile.
        Both are in memory until then. Raises LoadError, and then nothing has changed.
        """
        await self._load(backend, lambda spec: None)
        replaced = []
        if others and (replaced := list(self._models.of(backend.spec.name))):
            self._models.remove(backend.spec.name)
        same = self._serve(backend, options, remake)
        await self._close([*replaced, *filter(None, [same])], grace_s)

    async def unload(self, model: str, version: str = "", *, grace_s: float = 30.0) -> None:
        """Stop serving ``model``, or one version of it, and answer what it has admitted.

        Raises ServingError with MODEL_NOT_FOUND.
        """
        scheduler = self._scheduler(model, version)
        name = scheduler.spec.name
        leaving = [scheduler] if version else list(self._models.of(name))
        self._models.remove(name, scheduler.spec.version if version else "")
        self._changed()
        await self._close(leaving, grace_s)

    def route(self, model: str, routes: Routes) -> None:
        """Send the requests to ``model``, if it is served, by ``routes`` from now on."""
        self._models.route(model, routes)
        self._changed()

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
        for scheduler in (*self._schedulers(), *self._leaving):
            scheduler.cut_off()

    async def close(self, grace_s: float) -> None:
        """Refuse new requests, answer the admitted within ``grace_s`` seconds, release models."""
        self.drain()
        self._closed = True
        copies = tuple(self._models.copies)
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        for reload in self._reloads.values():
            reload.cancel()
        await asyncio.gather(*self._reloads.values(), return_exceptions=True)
        leaving = dict(self._leaving)
        await asyncio.gather(self._close(self._schedulers(), grace_s), _see_off(leaving, grace_s))

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on the loop after readiness or the models served may have changed.

        Returns an undo.
        """
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def specs(self) -> tuple[ModelSpec, ...]:
        """Return the models being served, every version."""
        return tuple(scheduler.spec for scheduler in self._schedulers())

    def spec(self, model: str, version: str = "") -> ModelSpec:
        """Return one model's spec; an empty name is the only model.

        ``version`` may be a label, and empty is what serves by default; whatever answers in its
        place takes the same inputs. Raises ServingError.
        """
        return self._scheduler(model, version).spec

    def updates(self, model: str, version: str = "") -> Updates:
        """Return what updates the embeddings of one model, as ``spec``. Raises ServingError."""
        return self._scheduler(model, version).updates

    def ask(self, request: InferRequest, asker: Asker) -> Asked:
        """Have ``asker`` told the answer to ``request``. Raises ServingError."""
        versions = self._versions(request.model, request.version)
        scheduler = versions.choose(request.version, request.key or request.id)
        if scheduler is None:
            raise self._models.nothing_called(request.model, request.version)
        return versions.ask(scheduler, request, asker)

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer ``request``; cancelling the awaiting task cancels it. Raises ServingError."""
        return await awaited(self.ask, request)

    def _schedulers(self) -> tuple[Scheduler, ...]:
        return self._models.all()

    def _versions(self, model: str, version: str) -> Versions:
        if not self._started:
            raise still_loading()
        versions = self._models.versions(model)
        if versions is None:
            raise self._models.nothing_called(model, version)
        return versions

    def _scheduler(self, model: str, version: str) -> Scheduler:
        versions = self._versions(model, version)
        scheduler = versions.named(version) if version else versions.default
        if scheduler is None:
            raise self._models.nothing_called(model, version)
        return scheduler

    async def _load(self, backend: Backend, check: Callable[[ModelSpec], None]) -> None:
        """Load ``backend``; if it cannot be served after all, let go of it. Raises LoadError."""
        await run_in_thread(lambda: load(backend), "load")
        try:
            check_loaded(backend.spec, backend.lanes)
            check(backend.spec)
            if self._closed:
                raise LoadError("the server is shutting down")
        except LoadError:
            await _discard(backend)
            raise

    def _check_new(self, spec: ModelSpec) -> None:
        if any(one.spec.version == spec.version for one in self._models.of(spec.name)):
            raise LoadError(f"model {spec.name!r} version {spec.version!r} is loaded already")

    def _serve(
        self, backend: Backend, options: SchedulerOptions | None, remake: Remake | None
    ) -> Scheduler | None:
        """Serve a loaded backend; return the scheduler of the same version that it replaces."""
        scheduler = self._started_scheduler(backend, options or self._options, remake)
        replaced = self._models.add(scheduler)
        self._changed()
        return replaced

    def _started_scheduler(
        self, backend: Backend, options: SchedulerOptions, remake: Remake | None
    ) -> Scheduler:
        def changed() -> None:
            if options.on_failure == "reload" and remake is not None and not self._draining:
                reload = asyncio.create_task(self._reload(scheduler, options, remake))
                self._reloads[scheduler] = reload
            self._changed()

        scheduler = Scheduler(backend, options, self.observer, changed, self._clock)
        self.observer.loaded(scheduler.spec, backend.lanes)
        return scheduler

    async def _reload(self, failed: Scheduler, options: SchedulerOptions, remake: Remake) -> None:
        """Put a fresh backend in the place of a failed one, or leave it failed."""
        try:
            await failed.close(grace_s=0.0)
            backend = await load_again(remake)
            self.observer.reloaded(failed.spec.name, "ok" if backend else "failed")
            if backend is not None and self._models.can_replace(failed, backend.spec):
                fresh = self._started_scheduler(backend, options, remake)
                self._models.replace(failed, fresh)
            elif backend is not None:
                await _discard(backend)
        finally:
            del self._reloads[failed]
            self._changed()

    async def _close(self, schedulers: Iterable[Scheduler], grace_s: float) -> None:
        closing = []
        for scheduler in schedulers:
            task = self._leaving[scheduler] = asyncio.create_task(scheduler.close(grace_s))
            task.add_done_callback(partial(self._leaving.pop, scheduler))
            closing.append(task)
        if closing:  # not cancelled with the caller: what was admitted is still answered
            await asyncio.wait(closing)

    def _changed(self) -> None:
        for callback in tuple(self._watchers):
            callback()


async def _discard(backend: Backend) -> None:
    await run_in_thread(lambda: close(backend), "close")


async def _see_off(leaving: dict[Scheduler, asyncio.Task[None]], grace_s: float) -> None:
    """Let schedulers that are closing already do so within ``grace_s``, whatever they were told."""
    if leaving:
        await asyncio.wait(leaving.values(), timeout=grace_s)
        for scheduler in leaving:
            scheduler.cut_off()
        await asyncio.wait(leaving.values())
