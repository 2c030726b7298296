"""The configured models by name: each can be loaded anew, or unloaded, while requests flow."""

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial

from app.models import Served
from app.turns import Refusal, Turns, UnderWay, done
from scheduler.engine import Engine
from scheduler.errors import Code, LoadError, ServingError, shown
from scheduler.observer import ReloadOutcome

logger = logging.getLogger(__name__)


class ConfiguredModels:
    """Load and unload what ``engine`` serves; a ``ModelControl``.

    ``grace_s`` is what the requests of a model that goes have to finish. What is under way goes on
    if whoever asked for it leaves.
    """

    def __init__(self, engine: Engine, grace_s: float) -> None:
        self._engine = engine
        self._grace_s = grace_s
        self._served: dict[str, Served] = {}
        self._turns = Turns()

    @property
    def names(self) -> tuple[str, ...]:
        """Every model that was configured."""
        return tuple(self._served)

    def served(self, model: str) -> Served | None:
        """Return what ``model`` is served from, None if it was not configured."""
        return self._served.get(model)

    @property
    def busy(self) -> bool:
        """Whether anything is being loaded or unloaded."""
        return self._turns.busy

    def add(self, models: Sequence[Served]) -> None:
        """Take in ``models``, which are served."""
        for served in models:
            self._served.setdefault(served.spec.name, served)

    async def run(self) -> None:
        """Do nothing by itself."""

    async def load(self, model: str) -> None:
        """Load the files of ``model`` anew and swap them in. Raises ServingError."""
        self._check_configured(model)
        await done(self._loading(model))

    async def unload(self, model: str) -> None:
        """Stop serving ``model`` once what it admitted is answered. Raises ServingError."""
        self._check_configured(model)
        await done(self._turns.alone(model, partial(self._unload, model)))

    async def load_all(self) -> None:
        """Load every model that is served anew, one after another; the log has what fails."""
        for name in self._served:
            if self._versions(name):
                await asyncio.shield(self._loading(name))
            else:
                logger.info("%s: not reloaded, it has been unloaded", name)

    def _check_configured(self, model: str) -> None:
        if not self._engine.started:
            raise ServingError(Code.UNAVAILABLE, "the model is still loading", retry_after_s=1.0)
        if model not in self._served:
            configured = ", ".join(self._served)
            raise ServingError(
                Code.MODEL_NOT_FOUND,
                f"no model {shown(model)} is configured; there are {configured}",
            )

    def _versions(self, name: str) -> list[str]:
        return [spec.version for spec in self._engine.specs() if spec.name == name]

    def _loading(self, model: str) -> UnderWay:
        return self._turns.shared(model, partial(self._load, model))

    async def _unload(self, name: str) -> Refusal | None:
        refusal = self._of_several(name)
        if refusal is not None:
            return refusal
        try:
            await self._engine.unload(name, grace_s=self._grace_s)
        except ServingError as error:
            return Refusal(error.code, error.detail)
        logger.info("%s: unloaded", name)
        return None

    async def _load(self, name: str) -> Refusal | None:
        refusal = self._of_several(name) or await self._swap(name, self._served[name])
        outcome: ReloadOutcome = "failed" if refusal else "ok"
        self._engine.observer.reloaded(name, outcome)
        return refusal

    def _of_several(self, name: str) -> Refusal | None:
        versions = self._versions(name)
        if len(versions) < 2:
            return None
        logger.error("%s: left alone, it is served in versions %s", name, versions)
        detail = f"model {name!r} is served in several versions ({', '.join(versions)})"
        return Refusal(Code.UNSUPPORTED, detail)

    async def _swap(self, name: str, served: Served) -> Refusal | None:
        """Swap one model. It keeps the name it is served under, whatever its files say now."""
        model = served.config.with_options(name=name)
        before = ", ".join(self._versions(name)) or "none"
        logger.info("%s: reloading", name)
        started_s = time.perf_counter()
        try:
            await model.check_signed()
            backend = model.build()
            options = model.scheduler.options
            await self._engine.swap(backend, options, model.remake, grace_s=self._grace_s)
        except LoadError as error:
            # The message says it all; the traceback is that of our own raise.
            logger.error("%s: not reloaded, version %s serves on: %s", name, before, error)  # noqa: TRY400
            return Refusal(Code.INTERNAL, f"model {name!r} was not loaded: {error}")
        except Exception as error:  # supervision: a plug-in's fault ends this load and no other
            logger.exception("%s: not reloaded, version %s serves on", name, before)
            return Refusal(Code.INTERNAL, f"model {name!r} was not loaded: {error!r}")
        logger.info(
            "%s: reloaded, version %s -> %s in %.2f s; %s",
            name, before, backend.spec.version, time.perf_counter() - started_s,
            model.effective(backend),
        )  # fmt: skip
        return None
