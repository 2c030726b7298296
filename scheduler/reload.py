"""Load a failed model anew, in the same process."""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from scheduler.backend import Backend
from scheduler.errors import LoadError
from scheduler.execute import load_new
from scheduler.threads import run_in_thread

logger = logging.getLogger(__name__)

ATTEMPTS = 5
FIRST_PAUSE_S = 1.0

Remake: TypeAlias = Callable[[], Backend]


async def load_again(remake: Remake) -> Backend | None:
    """Return a freshly loaded backend; pause before each attempt, twice as long each time.

    None when the last attempt has failed: then only a new process can help.
    """
    pause_s = FIRST_PAUSE_S
    for attempt in range(1, ATTEMPTS + 1):
        await asyncio.sleep(pause_s)
        pause_s *= 2
        try:
            backend = await run_in_thread(lambda: load_new(remake), "reload")
        except LoadError as error:
            logger.error("reload, attempt %d of %d: %s", attempt, ATTEMPTS, error)  # noqa: TRY400
        else:
            logger.info("reload: %s serves again", backend.spec.name)
            return backend
    logger.error("reload: given up, the model stays failed")
    return None
