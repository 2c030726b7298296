"""A request's head -> the call it opens."""

from typing import TypeAlias

import grpc

from scheduler.errors import ServingError
from transports.grpc.methods import Arrival, Methods, Reply
from transports.grpc.nghttp2.calls import Call, RefusedCall, UnaryCall
from transports.grpc.nghttp2.direct import DirectCall
from transports.grpc.nghttp2.head import Head, parse_head
from transports.grpc.nghttp2.messages import MessageReader
from transports.grpc.nghttp2.streams import StreamCall
from transports.grpc.nghttp2.wire import Wire

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]


class Opening:
    """Open the calls of one connection. Messages have at most ``max_message_bytes``."""

    def __init__(self, wire: Wire, methods: Methods, max_message_bytes: int) -> None:
        self._wire = wire
        self._methods = methods
        self._max_message_bytes = max_message_bytes
        self._last: tuple[Headers, Head] | None = None

    def call(self, stream_id: int, headers: Headers, now_s: float) -> Call:
        """Return the call that begins ``now_s``, which may be over already.

        Raises NotGrpcError.
        """
        try:
            head = self._head(headers)
        except ServingError as failure:
            return self.refused(stream_id, now_s, failure)
        arrival = Arrival(head.path, head.metadata, now_s, now_s + head.timeout_s)
        reader = MessageReader(head.coding, self._max_message_bytes)
        unary, stream = self._methods.unary.get(head.path), self._methods.streams.get(head.path)
        if unary is None and stream is None:
            reply = Reply(grpc.StatusCode.UNIMPLEMENTED, detail=f"no method {head.path[:128]}")
            return RefusedCall(self._wire, stream_id, arrival, reader, reply)
        try:
            arrival = self._methods.admit(arrival)
        except ServingError as failure:
            reply = self._methods.refused(arrival, failure)
            return RefusedCall(self._wire, stream_id, arrival, reader, reply)
        direct = self._methods.direct.get(head.path)
        if unary is not None and direct is not None:
            return DirectCall(self._wire, stream_id, arrival, reader, unary, direct)
        if unary is not None:
            return UnaryCall(self._wire, stream_id, arrival, reader, unary)
        assert stream is not None
        return StreamCall(self._wire, stream_id, arrival, reader, stream)

    def refused(self, stream_id: int, now_s: float, failure: ServingError) -> Call:
        """Return a call that is turned away and reported."""
        reader = MessageReader("identity", self._max_message_bytes)
        arrival = Arrival("", {}, now_s)
        reply = self._methods.refused(arrival, failure)
        return RefusedCall(self._wire, stream_id, arrival, reader, reply)

    def _head(self, headers: Headers) -> Head:
        """Parse ``headers``, unless they are those of the call before: many clients' are."""
        if self._last is not None and self._last[0] == headers:
            return self._last[1]
        head = parse_head(headers)
        self._last = (headers, head)
        return head
