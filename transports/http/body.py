"""Read a request's body whole, within a limit of bytes and of time."""

import asyncio
import contextlib
from dataclasses import dataclass
from http import HTTPStatus

from starlette.types import Receive

from scheduler.errors import Code, ServingError
from transports.http.problem import HttpError

# An early answer is lost when the connection closes on bytes nobody read (the kernel resets it),
# so what a client still sends is read for a while: enough for one that looks only after its last
# byte, and bounded for one that never ends.
DRAIN_S = 5.0
DRAIN_FACTOR = 2


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bound one request body: its size, and the seconds from its head to its last byte."""

    max_request_bytes: int
    timeout_s: float


class Body:
    """One request's body; ``complete`` once its last byte has been taken."""

    def __init__(self, receive: Receive, limits: BodyLimits) -> None:
        self.complete = False
        self._receive = receive
        self._limits = limits

    async def read(self, declared_bytes: int | None) -> bytes:
        """Return the body; too long a one is refused as soon as that shows.

        Raises ServingError (PAYLOAD_TOO_LARGE; CANCELLED if the client left) or HttpError (408).
        """
        if declared_bytes is not None:
            self._check(declared_bytes, "bytes")
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                return await self._read()
        except TimeoutError as error:
            raise HttpError(
                HTTPStatus.REQUEST_TIMEOUT,
                f"body: not complete after {self._limits.timeout_s:g} s (body_timeout_s)",
                code=Code.DEADLINE_EXCEEDED,
            ) from error

    async def drain(self) -> None:
        """Throw away what is still coming, within bounds."""
        left_bytes = DRAIN_FACTOR * self._limits.max_request_bytes
        with contextlib.suppress(TimeoutError, ServingError):
            async with asyncio.timeout(DRAIN_S):
                while not self.complete and left_bytes > 0:
                    left_bytes -= len(await self._next())

    async def _read(self) -> bytes:
        chunks: list[bytes] = []
        size_bytes = 0
        while True:
            chunk = await self._next()
            chunks.append(chunk)
            size_bytes += len(chunk)
            if self.complete:
                break
            self._check(size_bytes, "bytes so far")
        self._check(size_bytes, "bytes")
        return b"".join(chunks)

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ServingError(Code.CANCELLED, "the client left before its body was complete")
        self.complete = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    def _check(self, size_bytes: int, unit: str) -> None:
        limit = self._limits.max_request_bytes
        if size_bytes > limit:
            raise ServingError(
                Code.PAYLOAD_TOO_LARGE,
                f"body: {size_bytes} {unit} exceed the limit of {limit} bytes (max_request_bytes)",
            )
