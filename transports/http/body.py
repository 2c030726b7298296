"""Read a request's body whole, within limits of bytes and of time."""

import asyncio
import contextlib
import math
import time
from http import HTTPStatus

from starlette.types import Receive

from scheduler.errors import Code, ServingError
from transports.http.coding import Unpacker
from transports.http.disconnect import reason
from transports.http.intake import Intake
from transports.http.problem import HttpError
from transports.http.receiving import whole_body

# An early answer is lost when the connection closes on bytes nobody read (the kernel resets it),
# so what a client still sends is read for a while: enough for one that looks only after its last
# byte, and bounded for one that never ends. A server that stops has less time.
DRAIN_S = 5.0
STOPPING_DRAIN_S = 1.0
DRAIN_FACTOR = 2


class Body:
    """One request's body; ``complete`` once its last byte has been taken."""

    def __init__(self, receive: Receive, intake: Intake) -> None:
        self.complete = False
        self._receive = receive
        self._intake = intake
        self._limits = intake.limits
        self._held_bytes = 0

    async def read(
        self, declared_bytes: int | None, json_bytes: int | None, coding: str = ""
    ) -> bytes:
        """Return the body, unpacked; see ``pieces``."""
        pieces = await self.pieces(declared_bytes, json_bytes, coding)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def pieces(
        self,
        declared_bytes: int | None,
        json_bytes: int | None,
        coding: str = "",
        bytes_per_s: float = math.inf,
    ) -> list[bytes]:
        """Return the body, unpacked, as it came; too long a one is refused as soon as that shows.

        To put a large one together takes time that need not be the event loop's.
        ``json_bytes`` is how much of it is JSON, None for all. ``coding`` is the content coding it
        arrives in, "" for none. What comes faster than ``bytes_per_s`` has to wait.
        Raises ServingError (PAYLOAD_TOO_LARGE, OVERLOADED, UNAVAILABLE; INVALID_REQUEST for what
        cannot be unpacked; CANCELLED if the client left) or HttpError (408; 400 for what is not
        HTTP).
        """
        is_json = json_bytes is None
        self._check_declared(declared_bytes, json_bytes)
        if not coding and not self._intake.closed:
            whole = self._take_whole(is_json)
            if whole is not None:  # needs no clock
                return [whole]
        try:
            async with self._intake.reading():
                unpacker = Unpacker(coding) if coding else None
                return await self._read(unpacker, is_json, bytes_per_s)
        except TimeoutError as error:
            raise HttpError(
                HTTPStatus.REQUEST_TIMEOUT,
                f"body: not complete after {self._limits.body_timeout_s:g} s (body_timeout_s)",
                code=Code.DEADLINE_EXCEEDED,
            ) from error

    def whole(self, declared_bytes: int | None, json_bytes: int | None) -> bytes | None:
        """Return the body if all of it has arrived, else None; it has no coding.

        Raises ServingError (PAYLOAD_TOO_LARGE, OVERLOADED).
        """
        self._check_declared(declared_bytes, json_bytes)
        return self._take_whole(json_bytes is None)

    async def drain(self) -> None:
        """Throw away what is still coming, within bounds."""
        left_bytes = DRAIN_FACTOR * self._limits.max_request_bytes
        with contextlib.suppress(TimeoutError, ServingError, HttpError):
            async with asyncio.timeout(STOPPING_DRAIN_S if self._intake.closed else DRAIN_S):
                while not self.complete and left_bytes > 0:
                    left_bytes -= len(await self._next())

    def release(self) -> None:
        """Give back the memory; the request has ended."""
        self._intake.give_back(self._held_bytes)
        self._held_bytes = 0

    def _take_whole(self, is_json: bool) -> bytes | None:
        message = whole_body(self._receive)
        if message is None:
            return None
        self.complete = True
        body: bytes = message["body"]
        self._hold(body, "bytes", is_json)
        return body

    async def _read(
        self, unpacker: Unpacker | None, is_json: bool, bytes_per_s: float
    ) -> list[bytes]:
        held: list[bytes] = []
        began_s = time.monotonic()
        while True:
            chunk = await self._next()
            if unpacker is None:
                self._hold(chunk, "bytes" if self.complete else "bytes so far", is_json)
                held.append(chunk)
            else:
                for piece in unpacker.pieces(chunk):
                    self._hold(piece, "bytes so far, unpacked,", is_json)
                    held.append(piece)
                    await asyncio.sleep(0)  # let others have their turn
            if self.complete:
                break
            early_s = self._held_bytes / bytes_per_s - (time.monotonic() - began_s)
            if early_s > 0:  # the client is told by its window, which fills
                await asyncio.sleep(early_s)
        if unpacker is not None:
            unpacker.finish()
        return held

    def _hold(self, piece: bytes, unit: str, is_json: bool) -> None:
        size_bytes = self._held_bytes + len(piece)
        self._check(size_bytes, unit, is_json)
        self._intake.take(len(piece))
        self._held_bytes = size_bytes

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise reason(message, "the client left before its body was complete")
        self.complete = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    def _check_declared(self, declared_bytes: int | None, json_bytes: int | None) -> None:
        if json_bytes is not None:
            self._check(json_bytes, "bytes", is_json=True)
        if declared_bytes is not None:
            self._check(declared_bytes, "bytes", json_bytes is None)

    def _check(self, size_bytes: int, unit: str, is_json: bool) -> None:
        limit, json_limit = self._limits.max_request_bytes, self._limits.max_json_bytes
        if size_bytes > limit:
            raise ServingError(
                Code.PAYLOAD_TOO_LARGE,
                f"body: {size_bytes} {unit} exceed the limit of {limit} bytes (max_request_bytes)",
            )
        if is_json and size_bytes > json_limit:
            raise ServingError(
                Code.PAYLOAD_TOO_LARGE,
                f"body: {size_bytes} {unit} exceed the limit of {json_limit} bytes for JSON "
                f"(max_json_bytes); a binary body may have {limit} bytes (max_request_bytes)",
            )
