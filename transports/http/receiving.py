"""What an ASGI ``receive`` of our own can do beside being awaited.

A body that is all there is taken without a clock, and a client that leaves is told by a call, where
any other ``receive`` needs a timer and a task a request: 20 us of the 60 that the app costs.
"""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from starlette.types import Message, Receive
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from scheduler.errors import ServingError
from transports.http.problem import HttpError

Ended: TypeAlias = Callable[[Message], None]


def ended(error: ServingError | HttpError) -> Message:
    """Return the disconnect that says what to answer: the client may still be there."""
    return {"type": "http.disconnect", "error": error}


def whole_body(receive: Receive) -> Message | None:
    """Take the request's body if all of it has arrived and nothing else is to be told first."""
    at_once: Callable[[], Message | None] | None = getattr(receive, "at_once", None)
    return at_once() if at_once else None


def watch(receive: Receive, told: Ended) -> Callable[[], object]:
    """Call ``told`` once with the disconnect, perhaps at once; return what ends the watch.

    The body must have been read: ``receive`` has nothing but the disconnect left to say.
    """
    own: Callable[[Ended | None], None] | None = getattr(receive, "watch", None)
    if own is None:
        return asyncio.create_task(_wait(receive, told)).cancel
    own(told)
    return lambda: own(None)


async def _wait(receive: Receive, told: Ended) -> None:
    while (message := await receive())["type"] != "http.disconnect":
        pass
    told(message)


class CycleReceiving:
    """uvicorn's ``receive`` of one request, with ends of the server's making, which it knows not.

    ``fault`` is asked for such an end, given whether the body is still incomplete; ``linger`` is
    called when the app wants more after it has answered one.
    """

    def __init__(
        self,
        cycle: RequestResponseCycle,
        fault: Callable[[bool], ServingError | HttpError | None],
        linger: Callable[[], None],
    ) -> None:
        self._cycle = cycle
        self._fault = fault
        self._linger = linger
        self._error: ServingError | HttpError | None = None
        self._told: Ended | None = None

    async def __call__(self) -> Message:
        """Return the next message, as ASGI has it."""
        if self._error is not None:  # and has been answered, since there is more to receive
            self._linger()
            return ended(self._error)
        message: Message = await self._cycle.receive()  # type: ignore[assignment] # typed dicts
        self._error = self._fault(message.get("more_body", False))
        return message if self._error is None else ended(self._error)

    def at_once(self) -> Message | None:
        """Return the rest of the body if it is complete, else None."""
        cycle = self._cycle
        if (
            cycle.more_body
            or cycle.disconnected
            or cycle.response_complete
            or cycle.waiting_for_100_continue
            or self._error is not None
            or self._fault(False) is not None
        ):
            return None
        cycle.flow.resume_reading()
        cycle.message_event.clear()
        body, cycle.body = bytes(cycle.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": False}

    def watch(self, told: Ended | None) -> None:
        """Call ``told`` with the disconnect once it comes, perhaps at once; None: no more."""
        self._told = told
        self.look()

    def look(self) -> None:
        """Tell the watcher if this is the end; whatever may have been it calls this."""
        if self._told is None:
            return
        error = self._fault(False)
        if error is not None:
            self._told(ended(error))
        elif self._cycle.disconnected:
            self._told({"type": "http.disconnect"})
