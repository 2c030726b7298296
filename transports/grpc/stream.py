"""A stream of requests and, in their order, of answers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeAlias

import grpc

from scheduler.errors import Code, ServingError
from transports.grpc.calls import AwaitedCall
from transports.grpc.metadata import REQUEST_ID, own_id
from transports.grpc.methods import Arrival, Reply, Send
from transports.grpc.outcome import refusal

# Requests of one stream under way at once: enough to share batches, few enough that one client
# cannot fill the memory.
WINDOW = 32

# Turns a request's bytes into its answer's, whatever they are.
Answer: TypeAlias = Callable[[bytes, AwaitedCall], Coroutine[Any, Any, bytes]]


class Streams:
    """Answer streams until closed."""

    def __init__(self, begin: Callable[[Arrival, float], AwaitedCall], answer: Answer) -> None:
        self._begin = begin
        self._answer = answer
        self._closed = False
        self._readers: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Read no more requests; a stream ends when those under way have their answers."""
        self._closed = True
        for reader in self._readers:
            reader.cancel()

    async def serve(self, bodies: AsyncIterator[bytes], arrival: Arrival, send: Send) -> Reply:
        """Answer the requests of one stream until the client or ``close`` ends it."""
        under_way: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
        room = asyncio.Semaphore(WINDOW)

        async def read(tasks: asyncio.TaskGroup) -> None:
            async for body in bodies:
                call = self._begin(arrival, time.perf_counter())
                await room.acquire()
                under_way.put_nowait(tasks.create_task(self._answer(body, call)))

        # Of the stream; each answer has its own request's id.
        request_id = own_id(arrival.metadata)
        if not self._closed:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(read(tasks))
                self._readers.add(reader)
                reader.add_done_callback(self._readers.discard)
                reader.add_done_callback(lambda _: under_way.put_nowait(None))
                while (task := await under_way.get()) is not None:
                    await send(await task)
                    room.release()
        if self._closed:
            # Not the end of an orderly stream: the client may have sent what was never read.
            failure = ServingError(Code.UNAVAILABLE, "the server is shutting down")
            return refusal(failure, request_id)
        return Reply(grpc.StatusCode.OK, trailers=((REQUEST_ID, request_id),))
