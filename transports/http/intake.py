"""What the bodies of one transport's requests share: their limits, their memory and their end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from scheduler.errors import Code, ServingError
from transports.http.ranges import BYTES, SECONDS, check_buffer, check_range


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bound bodies: one's size (as JSON, and at all), the size of all that are held, the time.

    ``max_unsent_bytes`` is about answers: those that clients have yet to take.
    ``body_timeout_s`` runs from a request's head to its last byte. Part of the options of every
    transport that serves the app.
    """

    max_request_bytes: int = field(
        default=67_108_864, metadata={"help": "largest request body; more is answered with 413"}
    )
    max_json_bytes: int = field(
        default=8_388_608,
        metadata={"help": "largest JSON body; decoding one holds up everything else"},
    )
    max_buffered_bytes: int = field(
        default=536_870_912,
        metadata={"help": "bytes of all bodies held at once; more is answered with 429"},
    )
    max_unsent_bytes: int = field(
        default=268_435_456,
        metadata={"help": "bytes of all answers not yet read; more cuts who owes most of them"},
    )
    body_timeout_s: float = field(
        default=60.0, metadata={"help": "seconds a body may take to arrive; then 408"}
    )

    def check_limits(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        check_range("max_request_bytes", self.max_request_bytes, BYTES)
        check_range("max_json_bytes", self.max_json_bytes, BYTES)
        check_buffer(self.max_buffered_bytes, self.max_request_bytes)
        check_range("max_unsent_bytes", self.max_unsent_bytes, BYTES)
        check_range("body_timeout_s", self.body_timeout_s, SECONDS)


class Intake:
    """Counts the bytes held, and ends all reading at once."""

    def __init__(self, limits: BodyLimits) -> None:
        self.limits = limits
        self.closed = False
        self._held_bytes = 0
        self._reading: set[asyncio.Timeout] = set()

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Bound the time of one body. Raises TimeoutError; ServingError once closed."""
        if self.closed:
            raise _stopping()
        try:
            async with asyncio.timeout(self.limits.body_timeout_s) as timeout:
                self._reading.add(timeout)
                try:
                    yield
                finally:
                    self._reading.discard(timeout)
        except TimeoutError as error:
            if self.closed:
                raise _stopping() from error
            raise

    def close(self) -> None:
        """Refuse the bodies that are not complete, and all that are to come."""
        self.closed = True
        now = asyncio.get_running_loop().time()
        for timeout in self._reading:
            if not timeout.expired():
                timeout.reschedule(now)

    def take(self, size_bytes: int) -> None:
        """Count bytes that are held from now on. Raises ServingError (OVERLOADED)."""
        limit = self.limits.max_buffered_bytes
        if self._held_bytes + size_bytes > limit:
            raise ServingError(
                Code.OVERLOADED,
                f"body: the bodies of all requests together would exceed the limit of {limit} "
                "bytes (max_buffered_bytes)",
            )
        self._held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count bytes that are held no more."""
        self._held_bytes -= size_bytes


def _stopping() -> ServingError:
    return ServingError(Code.UNAVAILABLE, "the server is stopping, and had not begun this request")
