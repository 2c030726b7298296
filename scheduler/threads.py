"""Threads that never hold up the end of the process."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def run_in_thread(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Call ``function`` on a daemon thread: unlike an executor's it never holds up process exit."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    future.set_running_or_notify_cancel()  # from here on a cancelled waiter is just not told

    def target() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001  # all of it goes to the awaiting task
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=target, name=name, daemon=True).start()
    return asyncio.wrap_future(future)
