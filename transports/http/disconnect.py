"""Turn a client's leaving into the cancellation of the task that works for it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Message, Receive

from scheduler.errors import Code, ServingError
from transports.http.problem import HttpError

T = TypeVar("T")


def ended(error: ServingError | HttpError) -> Message:
    """Return the disconnect that says what to answer: the client may still be there."""
    return {"type": "http.disconnect", "error": error}


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
    watcher = asyncio.create_task(_cancel_on_disconnect(receive, task))
    try:
        return await work
    except asyncio.CancelledError:
        if task.cancelling() == 0:  # nobody cancelled this task: something within it was
            raise ServingError(Code.CANCELLED, "the server cancelled the request") from None
        # Only the watcher ends by itself; a cancel from elsewhere (shutdown) goes on its way.
        if watcher.done() and not watcher.cancelled() and task.uncancel() == 0:
            raise reason(watcher.result(), "the client left before its answer") from None
        raise
    finally:
        watcher.cancel()


async def _cancel_on_disconnect(receive: Receive, task: asyncio.Task[Any]) -> Message:
    while (message := await receive())["type"] != "http.disconnect":
        pass
    task.cancel()
    return message
