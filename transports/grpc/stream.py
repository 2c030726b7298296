"""A stream of requests and, in their order, of answers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeAlias

from scheduler.errors import Code, ServingError
from transports.grpc.metadata import REQUEST_ID, own_id
from transports.grpc.outcome import refuse

# Requests of one stream under way at once: enough to share batches, few enough that one client
# cannot fill the memory.
WINDOW = 32

# Turns a request's bytes into its answer's, whatever they are.
Answer: TypeAlias = Callable[[bytes, Any], Coroutine[Any, Any, bytes]]


class Streams:
    """Answer streams until closed."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._closed = False
        self._readers: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Read no more requests; a stream ends when those under way have their answers."""
        self._closed = True
        for reader in self._readers:
            reader.cancel()

    async def serve(self, bodies: AsyncIterator[bytes], context: Any) -> None:
        """Answer the requests of one stream until the client or ``close`` ends it."""
        under_way: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
        room = asyncio.Semaphore(WINDOW)

        async def read(tasks: asyncio.TaskGroup) -> None:
            async for body in bodies:
                await room.acquire()
                under_way.put_nowait(tasks.create_task(self._answer(body, context)))

        # Of the stream; each answer has its own request's id.
        request_id = own_id(dict(context.invocation_metadata()))
        context.set_trailing_metadata(((REQUEST_ID, request_id),))
        if not self._closed:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(read(tasks))
                self._readers.add(reader)
                reader.add_done_callback(self._readers.discard)
                reader.add_done_callback(lambda _: under_way.put_nowait(None))
                while (task := await under_way.get()) is not None:
                    await context.write(await task)
                    room.release()
        if self._closed:
            # Not the end of an orderly stream: the client may have sent what was never read.
            failure = ServingError(Code.UNAVAILABLE, "the server is shutting down")
            refuse(context, failure, request_id)
