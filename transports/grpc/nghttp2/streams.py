"""A call of many messages: what is not read, the client gets no room to send."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable

import grpc

from scheduler.errors import ServingError
from transports.grpc.methods import Arrival, Reply, Stream
from transports.grpc.nghttp2.calls import Call
from transports.grpc.nghttp2.messages import MessageReader, Packed
from transports.grpc.nghttp2.wire import Wire


class StreamCall(Call):
    """A call of any number of requests and answers; its method begins with the head."""

    def __init__(
        self, wire: Wire, stream_id: int, arrival: Arrival, reader: MessageReader, method: Stream
    ) -> None:
        super().__init__(wire, stream_id, arrival, reader)
        self._method = method
        self._inbox: deque[bytes | Packed] = deque()
        self._held_bytes = 0  # received, and not yet acknowledged
        self._arrived = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        if arrival.deadline_s < math.inf:
            self._timer = asyncio.get_running_loop().call_later(arrival.left_s, self._too_late)
        self._start()

    def received(self, data: bytes) -> None:
        """Take bytes off the wire; while messages wait to be read the client gets no more room."""
        self._held_bytes += len(data)
        try:
            if not self.over:
                self._inbox.extend(self.reader.feed(data))
                if self.complete:
                    self.reader.finish()
        except ServingError as failure:
            self.refuse(failure)
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
        if self._held_bytes:
            self._wire.consumed(self._stream_id, self._held_bytes)
            self._held_bytes = 0

    def _reply(self) -> Awaitable[Reply]:
        return self._method(self._bodies(), self.arrival, self._send_and_wait)

    async def _bodies(self) -> AsyncIterator[bytes]:
        while True:
            while self._inbox:
                body = self._inbox.popleft()
                if not self._inbox:
                    self._acknowledge()
                if isinstance(body, bytes):
                    yield body
                    continue
                try:
                    unpacked = await self._unpacked(body)
                except ServingError as failure:
                    self.refuse(failure)
                    return
                yield unpacked
            if self.complete:
                return
            self._arrived.clear()
            await self._arrived.wait()

    async def _send_and_wait(self, body: bytes) -> None:
        if not self.over:
            self._send(body)
            await self._wire.room(self._stream_id)

    def _too_late(self) -> None:
        self.cut(Reply(grpc.StatusCode.DEADLINE_EXCEEDED, detail="the client's deadline passed"))
