"""What an engine serves: methods from bytes to bytes, without a word about the wire.

A service gives its methods by path; ``engine_grpcio`` and ``nghttp2`` each carry all of them.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

import grpc

from scheduler.access import Caller
from scheduler.errors import ServingError

# By name in lower case; values of names that end in -bin are bytes.
Metadata: TypeAlias = Mapping[str, str | bytes]


@dataclass(slots=True, eq=False)
class Arrival:
    """What a call says before its first message; times are those of ``time.perf_counter``.

    ``caller`` is who it is, once that is known, where clients need API keys.
    """

    path: Final[str]
    metadata: Final[Metadata]
    began_s: Final[float]
    deadline_s: Final[float]
    caller: Final[Caller | None]

    def __init__(
        self,
        path: str,
        metadata: Metadata,
        began_s: float,
        deadline_s: float = math.inf,
        caller: Caller | None = None,
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.began_s = began_s
        self.deadline_s = deadline_s
        self.caller = caller

    @property
    def left_s(self) -> float:
        """Seconds until the client gives up; infinite if it said nothing."""
        if self.deadline_s == math.inf:
            return math.inf
        return self.deadline_s - time.perf_counter()


@dataclass(slots=True)
class Reply:
    """How a call ends: with a status and, of a unary call that succeeds, the answer's bytes."""

    status: Final[grpc.StatusCode]
    body: Final[bytes | None]
    detail: Final[str]
    trailers: Final[tuple[tuple[str, str], ...]]

    def __init__(
        self,
        status: grpc.StatusCode,
        body: bytes | None = None,
        detail: str = "",
        trailers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.status = status
        self.body = body
        self.detail = detail
        self.trailers = trailers


class Answering(Protocol):
    """A call that is being answered, or was."""

    def cancel(self) -> None:
        """Answer it no more: its client has left."""


# Answers a call of one request.
Unary: TypeAlias = Callable[[bytes, Arrival], Awaitable[Reply]]
# Hears once how a call ends, unless that was cancelled.
Replied: TypeAlias = Callable[[Reply], None]
# Answers a call of one request without a task: perhaps before it returns.
Direct: TypeAlias = Callable[[bytes, Arrival, Replied], Answering]
# Sends one message; returns when the client has room for the next.
Send: TypeAlias = Callable[[bytes], Awaitable[None]]
# Answers a call of any number of requests with any number of messages.
Stream: TypeAlias = Callable[[AsyncIterator[bytes], Arrival, Send], Awaitable[Reply]]


def awaited(method: Direct) -> Unary:
    """Return ``method`` as one that a task awaits; cancelling the task cancels the call."""

    async def reply(body: bytes, arrival: Arrival) -> Reply:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def replied(reply: Reply) -> None:
            if not future.done():
                future.set_result(reply)

        answering = method(body, arrival, replied)
        try:
            return await future
        except asyncio.CancelledError:
            answering.cancel()
            raise

    return reply


def everybody(arrival: Arrival) -> Arrival:
    """Let every call go on."""
    return arrival


@dataclass(frozen=True, slots=True)
class Methods:
    """Every method by its path, ``/package.Service/Method``; those in ``direct`` in ``unary`` too.

    ``refused`` reports a call that the engine turned away by itself, and says how it ends.
    ``admit`` is asked before any message is read, and raises ServingError for what may not go on.
    """

    unary: Mapping[str, Unary]
    streams: Mapping[str, Stream]
    refused: Callable[[Arrival, ServingError], Reply]
    admit: Callable[[Arrival], Arrival] = everybody
    direct: Mapping[str, Direct] = field(default_factory=dict)
