"""Turn a client's leaving into the cancellation of the task that works for it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Message, Receive

from scheduler.abandoned import version_noted
from scheduler.errors import Code, ServingError
from transports.http.problem import HttpError
from transports.http.receiving import watch

T = TypeVar("T")


def reason(message: Message, otherwise: str) -> ServingError | HttpError:
    """Return why a disconnect came; CANCELLED with ``otherwise`` if the client left."""
    error: ServingError | HttpError | None = message.get("error")
    return error or ServingError(Code.CANCELLED, otherwise)


async def unless_client_leaves(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return what ``work`` returns, run in this task; cancel it when ``receive`` says disconnect.

    The body must have been read: ``receive`` has nothing but the disconnect left to say. A client
    that only shuts down its write side counts as gone: its FIN is the same as that of one that
    closed. Raises the disconnect's reason, and whatever ``work`` raises.
    """
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("unless_client_leaves runs in a task")
    left: list[Message] = []

    def leave(message: Message) -> None:
        if not left:
            left.append(message)
            task.cancel()

    unwatch = watch(receive, leave)
    error: ServingError | HttpError | None = None
    try:
        return await work
    except asyncio.CancelledError as cancelled:
        if task.cancelling() == 0:  # nobody cancelled this task: something within it was
            error = ServingError(Code.CANCELLED, "the server cancelled the request")
        elif left and task.uncancel() == 0:
            error = reason(left[0], "the client left before its answer")
        else:  # a cancel from elsewhere (shutdown) goes on its way
            raise
        if isinstance(error, ServingError):
            error.version = version_noted(cancelled)
        raise error from None
    finally:
        unwatch()
        error = None  # its frames hold the request, and this one would hold it: a cycle
