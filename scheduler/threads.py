"""Threads that never hold up the end of the process."""

import asyncio
import concurrent.futures
import queue
import threading
import weakref
from collections.abc import Callable
from typing import TypeAlias, TypeVar

T = TypeVar("T")
# None ends the thread.
_Inbox: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"


def run_in_thread(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Call ``function`` on a daemon thread: unlike an executor's it never holds up process exit."""
    future, target = _told(function)
    threading.Thread(target=target, name=name, daemon=True).start()
    return asyncio.wrap_future(future)


class Worker:
    """One daemon thread for what comes often, from the first call until nobody has this any more.

    Whoever begins a thread waits until it runs, which on a busy machine is milliseconds of the
    event loop.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: _Inbox = queue.SimpleQueue()
        self._started = False
        weakref.finalize(self, self._inbox.put, None)

    def run(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Call ``function`` on the thread, after what it was given before."""
        future, target = _told(function)
        if not self._started:
            self._started = True
            inbox = (self._inbox,)
            threading.Thread(target=_serve, args=inbox, name=self._name, daemon=True).start()
        self._inbox.put(target)
        return asyncio.wrap_future(future)


def _serve(inbox: _Inbox) -> None:
    while (target := inbox.get()) is not None:
        target()
        del target  # with what it holds, while the next is waited for


def _told(function: Callable[[], T]) -> tuple[concurrent.futures.Future[T], Callable[[], None]]:
    """Return a future and what calls ``function`` and tells the future."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    future.set_running_or_notify_cancel()  # from here on a cancelled waiter is just not told

    def target() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001  # all of it goes to the awaiting task
            future.set_exception(error)
        else:
            future.set_result(result)

    return future, target
