"""What the requests on an HTTP/1.1 connection need of it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from scheduler.errors import ServingError
from transports.http.flow import HoldableFlow
from transports.http.problem import HttpError


class Connection(asyncio.Protocol):
    """The part of the protocol that its requests see.

    ``standing`` are the headers of every answer, one list that is kept up to date.
    """

    transport: asyncio.Transport
    flow: HoldableFlow

    def __init__(self, standing: list[tuple[bytes, bytes]]) -> None:
        self.standing = standing

    def fault(self, incomplete: bool) -> ServingError | HttpError | None:
        """Return an end of the server's making, for a request whose body is ``incomplete``."""
        raise NotImplementedError

    def in_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in a task that the server waits for when it stops."""
        raise NotImplementedError

    def linger(self) -> None:
        """Close, once the client has had time to read an answer that such an end got."""
        raise NotImplementedError

    def answered(self) -> None:
        """Go on: the request whose turn it was has its answer."""
        raise NotImplementedError
