"""A call of many messages: what is not read, the client gets no room to send."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable

import grpc

from scheduler.errors import ServingError
from transports.grpc.methods import Arrival, Reply, Stream
from transports.grpc.nghttp2.calls import Call
from transports.grpc.nghttp2.messages import PREFIX_BYTES, MessageReader, Packed
from transports.grpc.nghttp2.wire import Wire


class StreamCall(Call):
    """A call of any number of requests and answers; its method begins with the head."""

    def __init__(
        self, wire: Wire, stream_id: int, arrival: Arrival, reader: MessageReader, method: Stream
    ) -> None:
        super().__init__(wire, stream_id, arrival, reader)
        self._method = method
        self._inbox: deque[bytes | Packed] = deque()
        self._unacknowledged_bytes = 0
        self._given: deque[int] = deque()  # sizes of the messages that the method has
        self._arrived = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        if arrival.deadline_s < math.inf:
            self._timer = asyncio.get_running_loop().call_later(arrival.left_s, self._too_late)
        self._start()

    def received(self, data: bytes) -> None:
        """Take bytes off the wire; while messages wait to be read the client gets no more room."""
        self._unacknowledged_bytes += len(data)
        try:
            if not self.over:
                self._share.take(len(data))
                self._inbox.extend(self.reader.feed(data))
                if self.complete:
                    self.reader.finish()
        except ServingError as failure:
            self.refuse(failure)
        self._lacks_end(self.reader.buffered_bytes)
        if not self._inbox:
            self._acknowledge()
        self._arrived.set()

    def left(self) -> None:
        """The stream is gone."""
        super().left()
        self._settle()

    def _end(self, reply: Reply) -> None:
        super()._end(reply)
        self._settle()

    def _settle(self) -> None:
        self._inbox.clear()
        self._acknowledge()
        if self._timer is not None:
            self._timer.cancel()

    def _acknowledge(self) -> None:
        if self._unacknowledged_bytes:
            self._wire.consumed(self._stream_id, self._unacknowledged_bytes)
            self._unacknowledged_bytes = 0

    def _reply(self) -> Awaitable[Reply]:
        return self._method(_Bodies(self), self.arrival, self._send_and_wait)

    async def body(self) -> bytes | None:
        """Return the next request once it is here; None if there is none any more."""
        while not self._inbox:
            if self.complete:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        message = self._inbox.popleft()
        if not self._inbox:
            self._acknowledge()
        try:
            return await self._body_of(message)
        except ServingError as failure:
            self.refuse(failure)
            return None

    async def _body_of(self, message: bytes | Packed) -> bytes:
        """Return what the method is given of ``message``. Raises ServingError."""
        if isinstance(message, bytes):
            body, size_bytes = message, PREFIX_BYTES + len(message)
        else:
            body = await self._unpacked(message)
            size_bytes = PREFIX_BYTES + len(message.body) + len(body)
        if not self.over:
            self._share.give(size_bytes)
            self._given.append(size_bytes)
        return body

    async def _send_and_wait(self, body: bytes) -> None:
        if not self.over:
            if self._given:  # an answer to each message, in their order, if to any
                self._share.done_with(self._given.popleft())
            self._send(body)
            await self._wire.room(self._stream_id)

    def _too_late(self) -> None:
        self.cut(Reply(grpc.StatusCode.DEADLINE_EXCEEDED, detail="the client's deadline passed"))


class _Bodies(AsyncIterator[bytes]):
    """The requests of a call: a class, for mypyc compiles no asynchronous generators."""

    def __init__(self, call: StreamCall) -> None:
        self._call = call

    async def __anext__(self) -> bytes:
        """Return the next. Raises StopAsyncIteration."""
        body = await self._call.body()
        if body is None:
            raise StopAsyncIteration
        return body
