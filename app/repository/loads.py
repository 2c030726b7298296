"""A few loads at once, and none for ever: what takes too long is reported and goes on alone."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from app.turns import UnderWay
from scheduler.control import Refused

logger = logging.getLogger(__name__)


class Loads:
    """Wait for work on models, ``at_once`` of them at a time, ``limit_s`` seconds for each.

    A slot that no model waits for may go to another version of one that is being worked on.

    A load that hangs cannot be ended, as it is inside a backend; but it holds up nobody else.
    ``changed`` is called when ``late`` has.
    """

    def __init__(self, at_once: int, limit_s: float, changed: Callable[[], None]) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._limit_s = limit_s
        self._changed = changed
        self._late: dict[str, UnderWay] = {}
        self._more: Counter[str] = Counter()  # slots that a model has besides its own

    @property
    def late(self) -> tuple[Refused, ...]:
        """The models that are being worked on for longer than that."""
        return tuple(Refused(model, "", self.reason) for model in self._late)

    @property
    def reason(self) -> str:
        """What is said of one."""
        return f"still loading after {self._limit_s:g} s (repository.load_timeout_s)"

    async def take_more(self, model: str) -> bool:
        """Return whether there was one more slot, free just now, for another version of ``model``.

        To be given back; a model that is late has none any more.
        """
        if self._slots.locked() or model in self._late:
            return False
        await self._slots.acquire()  # without waiting
        self._more[model] += 1
        return True

    def give_back(self, model: str) -> None:
        """Let others have one of the slots that ``model`` took, if it still has them."""
        if self._more[model]:
            self._more[model] -= 1
            self._slots.release()

    async def follow(self, model: str, begin: Callable[[], UnderWay]) -> None:
        """Begin work and wait for it, unless what was begun before is late: then nothing is done.

        Whatever the work raises is logged.
        """
        if model in self._late:
            return
        async with self._slots:
            work = begin()
            if await self.in_time(model, work):
                _log_fault(model, work)

    async def in_time(self, model: str, work: UnderWay) -> bool:
        """Wait for ``work``, which goes on if the caller is cancelled; return whether it ended."""
        over, _ = await asyncio.wait([work], timeout=self._limit_s)
        if not over and self._late.get(model) is not work:
            logger.error("%s: %s", model, self.reason)
            self._late[model] = work
            while self._more[model]:
                self.give_back(model)
            work.add_done_callback(lambda work: self._over(model, work))
            self._changed()
        return bool(over)

    def _over(self, model: str, work: UnderWay) -> None:
        if self._late.get(model) is work:
            del self._late[model]
        _log_fault(model, work)
        self._changed()


def _log_fault(model: str, work: UnderWay) -> None:
    """Log what ``work`` raised: what one model's files meet is no fault of the others."""
    error = None if work.cancelled() else work.exception()
    if error is not None:
        logger.error("%s: following its files failed", model, exc_info=error)
