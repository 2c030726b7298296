"""Build every model anew and let it take over from the one that serves, whenever asked."""

import asyncio
import logging
import time
from collections.abc import Sequence

from app.models import Served
from scheduler.engine import Engine
from scheduler.errors import LoadError

logger = logging.getLogger(__name__)


class Reloader:
    """Reload what ``engine`` serves while requests flow.

    ``grace_s`` is what the requests of a replaced model have to finish. ``busy`` is true while a
    reload is under way, and stays so if it is cancelled.
    """

    def __init__(self, engine: Engine, grace_s: float) -> None:
        self._engine = engine
        self._grace_s = grace_s
        self._asked = asyncio.Event()
        self.busy = False

    def ask(self) -> None:
        """Reload; if that is under way already, once more after it."""
        self._asked.set()

    async def run(self, models: Sequence[Served]) -> None:
        """Reload ``models``, one after another, whenever asked; for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            self.busy = True
            for model in models:
                await self._reload(model)
            self.busy = False

    async def _reload(self, served: Served) -> None:
        """Swap one model. It keeps the name it is served under, whatever its files say now."""
        name = served.spec.name
        versions = [spec.version for spec in self._engine.specs() if spec.name == name]
        if len(versions) > 1:
            logger.error("%s: not reloaded, it is served in versions %s", name, versions)
            return
        model = served.config.named(name)
        logger.info("%s: reloading", name)
        started_s = time.perf_counter()
        backend = model.build()
        options = model.scheduler.options
        try:
            await self._engine.swap(backend, options, model.build, grace_s=self._grace_s)
        except LoadError as error:
            # The message says it all; the traceback is that of our own raise.
            logger.error("%s: not reloaded, version %s serves on: %s", name, *versions, error)  # noqa: TRY400
            return
        logger.info(
            "%s: reloaded, version %s -> %s in %.2f s; %s",
            name, *versions, backend.spec.version, time.perf_counter() - started_s,
            model.effective(backend),
        )  # fmt: skip
