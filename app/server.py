"""Start and stop order: listen, load, open; not ready, serve on, refuse, finish, exit."""

import asyncio
import contextlib
import errno
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.access.guard import Guard, guard_of
from app.companions import FolderCompanions
from app.config import ServerOptions
from app.configured import ConfiguredModels
from app.deltas import DeltaFolder
from app.frontends.group import Group
from app.memory import settle_memory
from app.models import ModelConfig, Served
from app.observe import PrometheusObserver
from app.open_files import allow_open_files
from app.reloader import Reloader
from app.repository.listing import PlaceError
from app.repository.options import NONE, RepositoryOptions
from app.repository.places import place_of
from app.repository.plan import Planner
from app.repository.repository import Repository
from app.tracing.tracing import TracingError
from app.watching import Watching, WatchOptions
from scheduler.engine import Engine
from scheduler.errors import LoadError
from scheduler.options import SchedulerOptions
from transports.base import HOLD_S, Transport
from transports.regions import SharedRegions

logger = logging.getLogger(__name__)

# How soon a Python-heavy compute thread gives the loop its turn: at the default 5 ms the loop's
# p99 triples.
SWITCH_INTERVAL_S = 1e-4
FLUSH_S = 1.0

# Called once the server is ready: with the models served and the addresses by transport.
Opened = Callable[[Sequence[Served], dict[str, tuple[str, ...]]], None]


class StartError(Exception):
    """Say why the server could not start."""


@dataclass(frozen=True)
class Parts:
    """What to serve with, made and not yet started.

    The models are those of the repository, if that has a URL, planned by ``planner``.
    """

    server: ServerOptions
    models: Sequence[ModelConfig]
    transports: Mapping[str, Transport]
    repository: RepositoryOptions
    planner: Planner
    watch: WatchOptions
    front_ends: Group | None = None


async def serve(parts: Parts, opened: Opened) -> bool:
    """Serve until told to stop; call ``opened`` once ready.

    Return whether no thread is left inside a library: one that loads a model cannot be stopped.
    Raises StartError, or ConfigError for the file of API keys.
    """
    _check_there(parts.models)
    _check_folder(parts.server.deltas)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    allow_open_files()
    loop = asyncio.get_running_loop()
    stop = _StopSignals(loop)
    watching = _watching(parts.watch)
    engine = Engine(SchedulerOptions(), watching.prometheus)
    engine.watch(lambda: watching.prometheus.serving(engine.specs()))
    if parts.front_ends is not None:
        watching.prometheus.also(parts.front_ends.families, parts.front_ends.settled)
    models = _models(parts, engine, watching.prometheus)
    engine.companions = FolderCompanions(models.served)
    if parts.server.shared_memory:
        engine.regions = SharedRegions(parts.server.shared_memory)
    if parts.server.model_control:
        engine.control = models
    ledger = parts.front_ends.ledger if parts.front_ends else None
    engine.access = guard = guard_of(parts.server.api_keys, engine.observer.keyed, ledger)
    reloader = Reloader(models)
    loop.add_signal_handler(signal.SIGHUP, _hang_up, reloader, guard)
    lag = asyncio.create_task(watching.prometheus.watch_loop())
    try:
        async with contextlib.AsyncExitStack() as undo:
            addresses = await _listen(parts.transports, engine, undo)
            served = await _unless_stopped(_start(parts, engine, models), stop)
            if served is not None:
                settle_memory()
                engine.open()
                opened(served, addresses)
                async with _running(reloader.run(), models.run(), *_watch(parts, engine)):
                    await stop.requested.wait()
            undo.pop_all()  # from here on the orderly way out
            await _drain(parts, engine, stop)
    finally:
        lag.cancel()
        await watching.end()
    return served is not None and not models.busy


def _watching(options: WatchOptions) -> Watching:
    """Return what watches. Raises StartError."""
    try:
        return Watching(options)
    except TracingError as error:
        raise StartError(f"tracing.endpoint: {error}") from error


def _models(
    parts: Parts, engine: Engine, observer: PrometheusObserver
) -> ConfiguredModels | Repository:
    """Return what loads and unloads models. Raises StartError."""
    options, grace_s = parts.repository, parts.server.grace_s
    if not options.url:
        return ConfiguredModels(engine, grace_s)
    try:
        place = place_of(options)
    except PlaceError as error:
        raise StartError(str(error)) from error
    return Repository(engine, place, options, parts.planner, observer, grace_s)


def _hang_up(reloader: Reloader, guard: Guard | None) -> None:
    reloader.ask()
    if guard is not None:
        guard.reload()


@contextlib.asynccontextmanager
async def _running(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let ``work`` go on within the block."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


def _check_there(models: Sequence[ModelConfig]) -> None:
    """Refuse a path that leads nowhere before anything listens. Raises StartError."""
    for model in models:
        if missing := model.missing():
            raise StartError(f"{_which(model)}{missing}")


def _check_folder(deltas: str) -> None:
    if deltas and not Path(deltas).is_dir():
        raise StartError(f"deltas: {deltas} is no folder")


def _watch(parts: Parts, engine: Engine) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield what watches for deltas, if a folder was named."""
    if parts.server.deltas:
        yield _folder(parts.server, engine).run()


def _folder(server: ServerOptions, engine: Engine) -> DeltaFolder:
    return DeltaFolder(engine, Path(server.deltas), server.artifact_keys)


def _which(model: ModelConfig) -> str:
    return f"model {model.label}: " if model.label else ""


def _port_hint(name: str) -> str:
    flag = f"--{name}-port"
    return f'; {flag} takes another, 0 any free one (make serve ARGS="{flag} 0")'


async def _listen(
    transports: Mapping[str, Transport], engine: Engine, undo: contextlib.AsyncExitStack
) -> dict[str, tuple[str, ...]]:
    """Start every transport, before the model loads, so that probes see the start-up."""
    addresses: dict[str, tuple[str, ...]] = {}
    for name, transport in transports.items():
        try:
            addresses[name] = await transport.start(engine)
        except OSError as error:
            # Without the number, unless the text is the system's own, which names the file.
            why = error if error.filename else error.strerror or error
            taken = error.errno == errno.EADDRINUSE and "unix_path" not in str(why)
            raise StartError(f"{name}: {why}{_port_hint(name) if taken else ''}") from error
        undo.push_async_callback(transport.stop, 0.0)
    return addresses


async def _start(
    parts: Parts, engine: Engine, models: ConfiguredModels | Repository
) -> list[Served]:
    """Load what is to be served at first. Raises StartError."""
    if isinstance(models, ConfiguredModels):
        served = await _load(engine, parts.models)
        models.add(served)
        return served
    try:
        served = await models.start()
    except PlaceError as error:
        raise StartError(f"repository {parts.repository.url}: {error}") from error
    if not served and parts.repository.mode == NONE:
        reasons = "".join(f"\n  {one.model} {one.version}: {one.reason}" for one in engine.refused)
        raise StartError(f"repository {parts.repository.url}: nothing to serve{reasons}")
    return served


async def _load(engine: Engine, models: Sequence[ModelConfig]) -> list[Served]:
    """Load every model, one after another. Raises StartError."""
    served = []
    for model in models:
        try:
            logger.info("loading %s ...", model.path or model.label or "the model")
            await model.check_signed()
            backend = model.build()
            await engine.load(backend, model.scheduler.options, model.remake)
        except LoadError as error:
            raise StartError(f"{_which(model)}{error}") from error
        spec = backend.spec
        logger.info("%s: version %s; %s", spec.name, spec.version, model.effective(backend))
        served.append(Served(model, spec))
    return served


async def _unless_stopped(
    loading: Coroutine[Any, Any, list[Served]], stop: "_StopSignals"
) -> list[Served] | None:
    """Return what ``loading`` does, or None if told to stop meanwhile."""
    task = asyncio.create_task(loading)
    stopped = asyncio.create_task(stop.requested.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return task.result()
    task.cancel()
    return None


async def _drain(parts: Parts, engine: Engine, stop: "_StopSignals") -> None:
    engine.drain()
    if stop.politely and engine.started:
        logger.info("draining: not ready, serving on for %g s", parts.server.drain_delay_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.hurried.wait(), parts.server.drain_delay_s)
    grace_s = parts.server.grace_s
    logger.info("stopping: finishing what was admitted, at most %g s", grace_s)
    cutting = asyncio.create_task(_cut_off_when_hurried(engine, stop))
    # Longer for the transports: when the grace ends the engine answers everybody left, and those
    # answers have to get out.
    transports = [transport.stop(grace_s + FLUSH_S) for transport in parts.transports.values()]
    stopping = asyncio.gather(*transports)
    hold_s = min(2 * HOLD_S, grace_s / 2)  # twice: front ends hear of the stop a little later
    await asyncio.wait([stopping], timeout=hold_s)
    await asyncio.gather(engine.close(grace_s - hold_s), stopping)
    cutting.cancel()
    logger.info("stopped")


async def _cut_off_when_hurried(engine: Engine, stop: "_StopSignals") -> None:
    await stop.hurried.wait()
    engine.cut_off()


class _StopSignals:
    """The first SIGTERM or SIGINT asks to stop, the second to hurry; SIGTERM asks politely."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.requested = asyncio.Event()
        self.hurried = asyncio.Event()
        self.politely = False
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received, number)

    def _received(self, number: signal.Signals) -> None:
        if self.requested.is_set():
            self.hurried.set()
        self.politely = self.politely or number is signal.SIGTERM
        self.requested.set()
