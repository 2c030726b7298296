"""One answer asked for: who waits for it, and what they hold meanwhile.

The answer is told by a plain call, in the step that has it: a task that awaits it is a turn of the
event loop later, and costs a coroutine for every function on the way.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from scheduler.abandoned import note_version, version_noted
from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest, InferResponse

logger = logging.getLogger(__name__)


class Asker:
    """Who waits for an answer. Told on the loop, perhaps before the asking is over."""

    @property
    def gone(self) -> bool:
        """Whether nobody waits any more, though nothing was cancelled yet."""
        return False

    def answered(self, answer: InferResponse | ServingError) -> None:
        """Take the answer; of each request that was not cancelled there is one."""
        raise NotImplementedError

    def failed(self, error: Exception, request_id: str) -> None:
        """Take a bug of ours in the place of the answer."""
        logger.error("request %s: unexpected error", request_id, exc_info=error)
        self.answered(ServingError(Code.INTERNAL, f"internal error; request id {request_id}"))


class Asked:
    """What was asked for. ``version`` is the one that has the request, "" if that is not known."""

    def __init__(self, version: str = "") -> None:
        self.version = version

    def cancel(self) -> None:
        """Ask for nothing any more: the asker is told nothing from now on."""


class Awaiting(Asker):
    """A task that awaits the answer; cancelling it cancels the request."""

    def __init__(self) -> None:
        future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        self._future: asyncio.Future[InferResponse] | None = future

    @property
    def gone(self) -> bool:
        """Whether the task is cancelled; it learns of that in the next turn of the loop."""
        return self._future is None or self._future.done()

    def answered(self, answer: InferResponse | ServingError) -> None:
        """Wake the task."""
        future = self._future
        if future is None or future.done():
            return
        if isinstance(answer, ServingError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    async def answer(self, asked: Asked) -> InferResponse:
        """Wait for the answer to what was ``asked``. Raises ServingError."""
        assert self._future is not None
        try:
            return await self._future
        except asyncio.CancelledError as cancelled:
            asked.cancel()
            note_version(cancelled, asked.version)
            raise
        finally:
            # An error's traceback holds this frame: without the cycle both go at once.
            self._future = None


async def awaited(
    ask: Callable[[InferRequest, Asker], Asked], request: InferRequest
) -> InferResponse:
    """Ask and await the answer; cancelling the task cancels the request. Raises ServingError."""
    asker = Awaiting()
    return await asker.answer(ask(request, asker))


class AskedByTask(Asked):
    """What a coroutine answers, as a task of its own."""

    def __init__(
        self, work: Coroutine[Any, Any, InferResponse], asker: Asker, request_id: str
    ) -> None:
        super().__init__()
        self._request_id = request_id
        self._begun = self._cancelled = False
        self._work = work
        self._task = asyncio.get_running_loop().create_task(self._run(work, asker))

    def cancel(self) -> None:
        """Cancel the task."""
        self._cancelled = True
        self._task.cancel()
        if not self._begun:  # nor will it be: Python warns of a coroutine that nobody awaits
            self._work.close()

    async def _run(self, work: Coroutine[Any, Any, InferResponse], asker: Asker) -> None:
        answer: InferResponse | ServingError
        self._begun = True
        try:
            answer = await work
        except ServingError as error:
            # Its frames hold the message; in a cycle with it they would hold it until the
            # collector runs.
            answer = error.with_traceback(None)
        except asyncio.CancelledError as cancelled:
            if self._cancelled:
                raise
            answer = ServingError(Code.CANCELLED, "the server cancelled the request")
            answer.version = version_noted(cancelled)
        except Exception as fault:  # noqa: BLE001  # the asker logs it
            asker.failed(fault, self._request_id)
            return
        asker.answered(answer)
