"""One compute thread: takes a batch from the loop, runs it, posts the outcome back."""

import asyncio
import concurrent.futures
import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from scheduler.backend import Backend
from scheduler.execute import Outcome, execute
from scheduler.types import Batch

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Lane:
    """Run one batch at a time on a thread of its own.

    ``done`` and ``died`` are called on the loop: after each batch, and once if the thread ends
    without being told to. The hand-off is a SimpleQueue one way and one ``call_soon_threadsafe``
    a batch the other: a third of what an executor costs.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        done: Callable[["Lane", tuple[Outcome, ...]], None],
        died: Callable[["Lane"], None],
    ) -> None:
        self._backend = backend
        self._done = done
        self._died = died
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        """Run ``batch`` next; the lane must be idle."""
        self._inbox.put(batch)

    def stop(self) -> None:
        """End the thread after the batch it is running."""
        self._inbox.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; return whether it did."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _serve(self) -> None:
        told_to_stop = False
        try:
            while (batch := self._inbox.get()) is not None:
                outcomes = execute(self._backend, batch)
                self._post(self._done, self, outcomes)
            told_to_stop = True
        finally:
            if not told_to_stop:
                self._post(self._died, self)

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop was closed under a lane that outlived its grace
            logger.warning("%s: answer dropped, the event loop is closed", self._thread.name)


def run_in_thread(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Call ``function`` on a daemon thread: unlike an executor's it never holds up process exit."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def target() -> None:
        future.set_running_or_notify_cancel()  # from here on a cancelled waiter is just not told
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001  # all of it goes to the awaiting task
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=target, name=name, daemon=True).start()
    return asyncio.wrap_future(future)
