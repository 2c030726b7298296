"""Load every model anew whenever asked: what SIGHUP does."""

import asyncio

from app.repository import Repository


class Reloader:
    """Reload everything in ``repository`` while requests flow."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Reload; if that is under way already, once more after it."""
        self._asked.set()

    async def run(self) -> None:
        """Reload whenever asked; for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self._repository.load_all()
