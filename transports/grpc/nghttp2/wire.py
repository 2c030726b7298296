"""The half of a connection that its calls hold: what they may do on their streams."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import ngh2

from scheduler.errors import ServingError
from transports.grpc.methods import Arrival, Reply
from transports.grpc.nghttp2 import replies
from transports.grpc.nghttp2.budget import Budget
from transports.grpc.nghttp2.messages import framed
from transports.grpc.nghttp2.output import Output

# A stream may be gone before we hear of it: its end came in the same piece of input as what is
# answered. ngh2 then does not know it (StreamUnavailableError), or says that it has no open body.
_GONE = contextlib.suppress(ngh2.StreamProtocolError)


class Wire:
    """Send answers; ``refused`` reports a call that is turned away and says how it ends.

    ``unfinished_bytes`` is what calls have of messages, and of unary requests, that lack their end.
    ``under_way`` counts the calls whose methods run.
    """

    def __init__(
        self,
        h2: ngh2.Connection,
        output: Output,
        refused: Callable[[Arrival, ServingError], Reply],
        budget: Budget,
    ) -> None:
        self.refused = refused
        self.budget = budget
        self.unfinished_bytes = 0
        self.under_way = 0
        self._h2 = h2
        self._output = output
        self._create_task = asyncio.get_running_loop().create_task
        self._tasks: set[asyncio.Task[None]] = set()
        self._answered: set[int] = set()  # streams answered before the client had sent its all

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` as a task and keep it until it is ``finished``."""
        task = self._create_task(work)
        self._tasks.add(task)
        self.under_way += 1
        return task

    def finished(self, task: asyncio.Task[None]) -> None:
        """Keep a task no longer."""
        self._tasks.discard(task)
        self.under_way -= 1

    def consumed(self, stream_id: int, size_bytes: int) -> None:
        """Let the client send so much more."""
        if not self._output.closed:
            try:  # noqa: SIM105  # each request comes here, and suppress costs it a microsecond
                self._h2.acknowledge_received_data(size_bytes, stream_id)
            except ngh2.StreamProtocolError:  # as _GONE
                pass
            self.write_if_wanted()

    def write_if_wanted(self) -> None:
        """Write soon what ngh2 has to say by itself."""
        if not self._output.closed and self._h2.want_write:
            self._output.soon()

    def begin(self, stream_id: int) -> None:
        """Send the head of an answer."""
        if not self._output.closed:
            with _GONE:
                self._h2.send_response(stream_id, replies.HEAD)

    def send(self, stream_id: int, body: bytes) -> None:
        """Send a message behind the head."""
        if not self._output.closed:
            with _GONE:
                self._h2.send_data(stream_id, framed(body))
            self._output.soon()

    def end(self, stream_id: int, reply: Reply) -> None:
        """Send what ends an answer behind its head and messages."""
        if not self._output.closed:
            with _GONE:
                self._h2.send_trailers(stream_id, replies.trailers(reply))
            self._output.soon()

    def answer(self, stream_id: int, body: bytes, reply: Reply) -> None:
        """Send head, message and end at once."""
        if self._output.closed:
            return
        try:
            self._h2.send_response(stream_id, replies.HEAD)
            self._h2.send_data(stream_id, framed(body))
            self._h2.send_trailers(stream_id, replies.trailers(reply))
        except ngh2.StreamProtocolError:  # as _GONE
            return
        self._output.soon()

    def end_without_answer(self, stream_id: int, reply: Reply) -> None:
        """Send nothing but how the call ends."""
        self._whole(stream_id, replies.HEAD + replies.trailers(reply))

    def refuse_http(self, stream_id: int, status: int) -> None:
        """Answer a request that is no gRPC call."""
        self._whole(stream_id, replies.http_refusal(status))

    def _whole(self, stream_id: int, fields: replies.Fields) -> None:
        if not self._output.closed:
            with _GONE:
                self._h2.send_response(stream_id, fields, end_stream=True)
            self._output.soon()

    async def room(self, stream_id: int) -> None:
        """Return when most of what was sent is out of our hands."""
        await self._output.room(stream_id)

    def flush_if_alone(self) -> None:
        """Write an answer now if no other call is under way that could share the write.

        The turn of the loop that this saves is what a client with one call at a time waits for.
        """
        if self.under_way == 1:
            self._output.flush()

    def stop_upload(self, stream_id: int) -> None:
        """Have the client send no more on a stream, once its answer has left."""
        self._answered.add(stream_id)
        self._output.soon()

    def forget(self, stream_id: int) -> None:
        """The stream is gone."""
        self._answered.discard(stream_id)

    def stop_uploads(self) -> None:
        """Reset the streams that are answered in full: to be called when all that can has left."""
        if self._output.full or self._output.closed:
            return
        for stream_id in tuple(self._answered):
            if not self._h2.queued_body_size(stream_id):
                self._answered.discard(stream_id)
                with _GONE:
                    self._h2.reset_stream(stream_id, ngh2.ErrorCode.NO_ERROR)
                self._output.soon()
