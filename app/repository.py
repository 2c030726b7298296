"""The configured models by name: each can be loaded anew, or unloaded, while requests flow."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from app.models import Served
from scheduler.engine import Engine
from scheduler.errors import Code, LoadError, ServingError, shown
from scheduler.observer import ReloadOutcome

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why nothing was done."""

    code: Code
    detail: str


_Work: TypeAlias = asyncio.Task[_Refusal | None]


@dataclass(slots=True)
class _Entry:
    """One model; whoever holds ``turn`` loads or unloads it, ``next`` is the load that waits."""

    served: Served
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    next: _Work | None = None


class Repository:
    """Load and unload what ``engine`` serves; a ``ModelControl``.

    ``grace_s`` is what the requests of a model that goes have to finish. What is under way goes on
    if whoever asked for it leaves.
    """

    def __init__(self, engine: Engine, grace_s: float) -> None:
        self._engine = engine
        self._grace_s = grace_s
        self._entries: dict[str, _Entry] = {}
        self._work: set[_Work] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """Every model that was configured."""
        return tuple(self._entries)

    @property
    def busy(self) -> bool:
        """Whether anything is being loaded or unloaded."""
        return bool(self._work)

    def add(self, models: Sequence[Served]) -> None:
        """Take in ``models``, which are served."""
        for served in models:
            self._entries.setdefault(served.spec.name, _Entry(served))

    async def load(self, model: str) -> None:
        """Load the files of ``model`` anew and swap them in. Raises ServingError."""
        await _done(self._loading(self._entry(model)))

    async def unload(self, model: str) -> None:
        """Stop serving ``model`` once what it admitted is answered. Raises ServingError."""
        await _done(self._begin(self._unload(self._entry(model))))

    async def load_all(self) -> None:
        """Load every model that is served anew, one after another; the log has what fails."""
        for name, entry in self._entries.items():
            if self._versions(name):
                await asyncio.shield(self._loading(entry))
            else:
                logger.info("%s: not reloaded, it has been unloaded", name)

    def _entry(self, model: str) -> _Entry:
        if not self._engine.started:
            raise ServingError(Code.UNAVAILABLE, "the model is still loading", retry_after_s=1.0)
        entry = self._entries.get(model)
        if entry is None:
            configured = ", ".join(self._entries)
            raise ServingError(
                Code.MODEL_NOT_FOUND,
                f"no model {shown(model)} is configured; there are {configured}",
            )
        return entry

    def _versions(self, name: str) -> list[str]:
        return [spec.version for spec in self._engine.specs() if spec.name == name]

    def _loading(self, entry: _Entry) -> _Work:
        if entry.next is None:
            entry.next = self._begin(self._load(entry))
        return entry.next

    def _begin(self, work: Coroutine[None, None, _Refusal | None]) -> _Work:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def _unload(self, entry: _Entry) -> _Refusal | None:
        name = entry.served.spec.name
        async with entry.turn:
            refusal = self._of_several(name)
            if refusal is not None:
                return refusal
            try:
                await self._engine.unload(name, grace_s=self._grace_s)
            except ServingError as error:
                return _Refusal(error.code, error.detail)
            logger.info("%s: unloaded", name)
            return None

    async def _load(self, entry: _Entry) -> _Refusal | None:
        name = entry.served.spec.name
        async with entry.turn:
            entry.next = None  # who asks from here on wants a load that begins later
            refusal = self._of_several(name) or await self._swap(name, entry.served)
        outcome: ReloadOutcome = "failed" if refusal else "ok"
        self._engine.observer.reloaded(name, outcome)
        return refusal

    def _of_several(self, name: str) -> _Refusal | None:
        versions = self._versions(name)
        if len(versions) < 2:
            return None
        logger.error("%s: left alone, it is served in versions %s", name, versions)
        detail = f"model {name!r} is served in several versions ({', '.join(versions)})"
        return _Refusal(Code.UNSUPPORTED, detail)

    async def _swap(self, name: str, served: Served) -> _Refusal | None:
        """Swap one model. It keeps the name it is served under, whatever its files say now."""
        model = served.config.named(name)
        before = ", ".join(self._versions(name)) or "none"
        logger.info("%s: reloading", name)
        started_s = time.perf_counter()
        try:
            backend = model.build()
            options = model.scheduler.options
            await self._engine.swap(backend, options, model.build, grace_s=self._grace_s)
        except LoadError as error:
            # The message says it all; the traceback is that of our own raise.
            logger.error("%s: not reloaded, version %s serves on: %s", name, before, error)  # noqa: TRY400
            return _Refusal(Code.INTERNAL, f"model {name!r} was not loaded: {error}")
        except Exception as error:  # supervision: a plug-in's fault ends this load and no other
            logger.exception("%s: not reloaded, version %s serves on", name, before)
            return _Refusal(Code.INTERNAL, f"model {name!r} was not loaded: {error!r}")
        logger.info(
            "%s: reloaded, version %s -> %s in %.2f s; %s",
            name, before, backend.spec.version, time.perf_counter() - started_s,
            model.effective(backend),
        )  # fmt: skip
        return None


async def _done(work: _Work) -> None:
    """Wait for ``work``, which goes on if the caller is cancelled. Raises ServingError."""
    refusal = await asyncio.shield(work)
    if refusal is not None:
        raise ServingError(refusal.code, refusal.detail)
