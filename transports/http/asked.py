"""One inference request, however it came: what its head says, and the way its answer takes."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.types import Scope, Send

from transports.http.whole import Fields, answer


class Asked:
    """What is the same of every request; how its answer is sent is its wire's.

    ``headers`` have names in lower case. ``version`` is HTTP's, "1.1" or "3".
    """

    def __init__(self, method: str, path: str, version: str, headers: dict[bytes, bytes]) -> None:
        self.method = method
        self.path = path
        self.version = version
        self.headers = headers

    async def answer(self, status: int, headers: Fields, body: bytes) -> None:
        """Send all of an answer; ``headers`` are our own, and have a content length."""
        raise NotImplementedError

    async def answer_early(
        self, status: int, headers: Fields, body: bytes, drain: Callable[[], Awaitable[None]]
    ) -> None:
        """Send an answer, and its end only once ``drain`` has swallowed what is still coming."""
        raise NotImplementedError


class AskedAtOnce(Asked):
    """A request that can be answered in a plain step."""

    def answer_now(self, status: int, headers: Fields, body: bytes) -> bool:
        """Write all of an answer, if anybody takes one; False if that has to wait."""
        raise NotImplementedError

    def go_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what has to wait in a task."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Answer a bug of ours."""
        raise NotImplementedError


class AskedByAsgi(Asked):
    """A request of an ASGI server, ours or another."""

    def __init__(self, scope: Scope, send: Send) -> None:
        super().__init__(
            scope["method"], scope["path"], scope["http_version"], dict(scope["headers"])
        )
        self._scope = scope
        self._send = send

    async def answer(self, status: int, headers: Fields, body: bytes) -> None:
        """Send it in one piece where the server takes that."""
        await answer(self._scope, self._send, status, headers, body)

    async def answer_early(
        self, status: int, headers: Fields, body: bytes, drain: Callable[[], Awaitable[None]]
    ) -> None:
        """Send all of it but the message that ends it."""
        send = self._send
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await drain()
        await send({"type": "http.response.body"})
