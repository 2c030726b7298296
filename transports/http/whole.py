"""Answers given in one piece: an ASGI extension of our own servers.

ASGI has an answer in two messages, each a coroutine through whatever stands before the server. A
server that can take both at once puts a function under ``WHOLE`` into the scope's extensions;
whoever changes answers on their way takes it out (``without_whole``).
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from starlette.types import Scope, Send

WHOLE = "narsil.whole"
Fields: TypeAlias = Sequence[tuple[bytes, bytes]]
# Takes the status, the headers (names in lower case) and the body. False: it must be sent.
Whole: TypeAlias = Callable[[int, Fields, bytes], bool]


def with_whole(scope: Scope, whole: Whole) -> None:
    """Say in ``scope`` that its answer may be given to ``whole``."""
    scope["extensions"] = {WHOLE: whole}


def without_whole(scope: Scope) -> None:
    """Have the answer sent as messages, which can be changed."""
    extensions = scope.get("extensions")
    if extensions:
        extensions.pop(WHOLE, None)


async def answer(scope: Scope, send: Send, status: int, headers: Fields, body: bytes) -> None:
    """Send all of an answer, in one piece where that is possible."""
    extensions = scope.get("extensions")
    whole: Whole | None = extensions.get(WHOLE) if extensions else None
    if whole is None or not whole(status, headers, body):
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
