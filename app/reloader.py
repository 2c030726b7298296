"""Load every model anew whenever asked: what SIGHUP does."""

import asyncio
import logging
from typing import Protocol

logger = logging.getLogger(__name__)


class Reloadable(Protocol):
    """What is served, and can be loaded anew."""

    async def load_all(self) -> None:
        """Load everything anew; the log has what fails."""


class Reloader:
    """Reload all that ``models`` has while requests flow."""

    def __init__(self, models: Reloadable) -> None:
        self._models = models
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Reload; if that is under way already, once more after it."""
        self._asked.set()

    async def run(self) -> None:
        """Reload whenever asked; for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            logger.info("asked for all models anew (SIGHUP)")
            await self._models.load_all()
            logger.info("done (SIGHUP): what could be loaded is served")
