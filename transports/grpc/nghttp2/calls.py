"""One HTTP/2 stream as a gRPC call: bytes come in, a task runs the method, a reply goes out."""

import asyncio
import logging
from collections.abc import Awaitable

import grpc

from scheduler.errors import Code, ServingError
from transports.grpc.methods import Arrival, Reply, Unary
from transports.grpc.nghttp2.budget import Share
from transports.grpc.nghttp2.messages import MessageReader, Packed, unpack
from transports.grpc.nghttp2.wire import Wire

logger = logging.getLogger(__name__)

# How long a call that is refused by its head may take to send more.
REFUSAL_DELAY_S = 0.05
FAILED = Reply(grpc.StatusCode.INTERNAL, detail="internal error")


class Call:
    """What every call does.

    ``over`` once there is a reply or the client has left; ``complete`` once the client has sent
    its all. ``heard_s`` is when it last sent anything.
    """

    def __init__(self, wire: Wire, stream_id: int, arrival: Arrival, reader: MessageReader) -> None:
        self.arrival = arrival
        self.reader = reader
        self.heard_s = arrival.began_s
        self.over = self.complete = False
        self._wire = wire
        self._stream_id = stream_id
        self._share = Share(wire.budget)
        self._unfinished_bytes = 0
        self._answering = False
        self._task: asyncio.Task[None] | None = None

    @property
    def owes_bytes(self) -> bool:
        """Whether the client has begun a message and not sent its end."""
        return self.reader.buffered_bytes > 0

    def received(self, data: bytes) -> None:
        """Take bytes off the wire; if the call is ``complete`` they are the last."""
        if data:
            self._wire.consumed(self._stream_id, len(data))

    def left(self) -> None:
        """The stream is gone: whatever still runs for it is cancelled."""
        if self.over:  # what ended it has seen to both
            return
        self.over = True
        self._drop()
        self._stop()

    def cut(self, reply: Reply) -> None:
        """End the call with ``reply``, whatever it is doing."""
        self._end(reply)
        self._stop()

    def refuse(self, failure: ServingError) -> None:
        """Turn the call away and report it."""
        if not self.over:
            self.cut(self._wire.refused(self.arrival, failure))

    def _start(self) -> None:
        self._task = self._wire.start(self._run())
        self._task.add_done_callback(self._done)

    def _stop(self) -> None:
        """Cancel what runs."""
        if self._task is not None:
            self._task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._wire.finished(task)
        self._share.close()

    def _drop(self) -> None:
        """Let go of what no method has."""
        self.reader.clear()
        self._lacks_end(0)
        self._share.drop_waiting()

    def _lacks_end(self, size_bytes: int) -> None:
        """Say how much the call has of what is not complete."""
        if size_bytes != self._unfinished_bytes:
            self._wire.unfinished_bytes += size_bytes - self._unfinished_bytes
            self._unfinished_bytes = size_bytes

    async def _run(self) -> None:
        """Run the method and send its reply."""
        try:
            reply = await self._reply()
        except ServingError as failure:  # in what was to be unpacked
            reply = self._wire.refused(self.arrival, failure)
        except Exception:
            logger.exception("%s: unexpected error", self._request_id)
            reply = FAILED
        self._end(reply)
        self._wire.flush_if_alone()

    @property
    def _request_id(self) -> str | bytes:
        return self.arrival.metadata.get("x-request-id", "")

    def _reply(self) -> Awaitable[Reply]:
        """Call the method."""
        raise NotImplementedError

    async def _unpacked(self, message: Packed) -> bytes:
        """Unpack while others have their turn. Raises ServingError."""
        pieces: list[bytes] = []
        size_bytes = 0
        try:
            for piece in unpack(message, self.reader.limit_bytes):
                self._share.take(len(piece))
                size_bytes += len(piece)
                pieces.append(piece)
                await asyncio.sleep(0)
        except ServingError:
            # At once: others that are unpacked in this turn of the loop have the room.
            pieces.clear()
            self._share.give_back(size_bytes)
            raise
        return b"".join(pieces)

    def _send(self, body: bytes) -> None:
        if not self._answering:
            self._answering = True
            self._wire.begin(self._stream_id)
        self._wire.send(self._stream_id, body)

    def _end(self, reply: Reply) -> None:
        if self.over:
            return
        self.over = True
        if self._answering:
            self._wire.end(self._stream_id, reply)
        elif reply.body is not None:
            self._wire.answer(self._stream_id, reply.body, reply)
        else:
            self._wire.end_without_answer(self._stream_id, reply)
        self._drop()
        if not self.complete:
            self._wire.stop_upload(self._stream_id)


class RefusedCall(Call):
    """A call that its head condemns.

    It hears of it with its first message, or soon: clients (grpcio's on asyncio) that are still
    about to send one when they are refused take that for a fault of their own.
    """

    def __init__(
        self, wire: Wire, stream_id: int, arrival: Arrival, reader: MessageReader, reply: Reply
    ) -> None:
        super().__init__(wire, stream_id, arrival, reader)
        self._refusal = reply
        later = asyncio.get_running_loop().call_later
        self._timer = later(REFUSAL_DELAY_S, self.cut, reply)

    def received(self, data: bytes) -> None:
        """Take the first bytes off the wire, and refuse."""
        super().received(data)
        self.cut(self._refusal)

    def left(self) -> None:
        """The stream is gone."""
        super().left()
        self._timer.cancel()


class UnaryCall(Call):
    """A call of exactly one request; its method begins once all of it is here."""

    def __init__(
        self, wire: Wire, stream_id: int, arrival: Arrival, reader: MessageReader, method: Unary
    ) -> None:
        super().__init__(wire, stream_id, arrival, reader)
        self._method = method
        self._body: bytes | Packed | None = None

    @property
    def owes_bytes(self) -> bool:
        """Whether the request is incomplete: that of a unary call is due at once."""
        return self._task is None

    def received(self, data: bytes) -> None:
        """Take bytes off the wire; begin with the last."""
        super().received(data)
        if self.over:
            return
        try:
            self._share.take(len(data))
            self._take(data)
            if self.complete:
                self._share.give_waiting()
                self._start()
        except ServingError as failure:
            self.refuse(failure)
        self._lacks_end(self._share.waiting_bytes)

    def _take(self, data: bytes) -> None:
        """Cut ``data`` into messages: one in the end, not more. Raises ServingError."""
        if self.complete and self._body is None:
            self._body = self.reader.whole(data)
            if self._body is not None:
                return
        for body in self.reader.feed(data):
            if self._body is not None:
                raise _cardinality("more than one")
            self._body = body
        if self.complete:
            self.reader.finish()
            if self._body is None:
                raise _cardinality("none")

    def _drop(self) -> None:
        self._body = None
        super()._drop()

    def _reply(self) -> Awaitable[Reply]:
        body, self._body = self._body, None
        if isinstance(body, bytes):
            return self._method(body, self.arrival)
        assert body is not None
        return self._unpack_and_reply(body)

    async def _unpack_and_reply(self, message: Packed) -> Reply:
        body = await self._unpacked(message)
        self._share.give(len(body))
        return await self._method(body, self.arrival)


def _cardinality(number: str) -> ServingError:
    return ServingError(Code.UNSUPPORTED, f"the method takes one request message, got {number}")
