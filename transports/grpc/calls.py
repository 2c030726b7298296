"""One inference call over gRPC, whatever its service: its metadata, limits, status and record.

The services say only how bytes become a request and a response bytes.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import grpc

from scheduler.abandoned import version_noted
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.observer import Answered
from scheduler.types import InferRequest, InferResponse, Timing, Trace
from transports.grpc.metadata import (
    KEY,
    REQUEST_ID,
    VERSION,
    own_id,
    own_trace,
    priority_in,
    span_of,
    text_in,
    usable_id,
)
from transports.grpc.methods import Arrival, Reply
from transports.grpc.outcome import outcome_of, refusal
from transports.named import Named, named


class Call:
    """One request on its way.

    ``message_id`` is the id within its message, as it is written there. ``named`` is what it
    names of what was served when that was read. ``trace`` is its span, if it is traced.
    """

    def __init__(self, arrival: Arrival, began_s: float, trace: Trace | None = None) -> None:
        self.began_s = began_s
        self.trace = trace
        self.timing: Timing | None = None
        self.arrival = arrival
        self.metadata = arrival.metadata
        self.timeout_s = math.inf
        self.id = own_id(arrival.metadata)
        self.named = Named()
        self.rows = 0
        self.message_id = ""

    def merged(self, request: InferRequest, version: str = "") -> InferRequest:
        """Return the decoded ``request`` with the call's own id, deadline, priority and key.

        ``version`` is the one that the metadata name. Raises ServingError if they say
        nonsense, or the client's key may not have so many rows now.
        """
        self.rows = request.rows
        if self.arrival.caller is not None:
            self.arrival.caller.spend(request.rows)
        # The metadata's id, if there is one: it is what the client's logs call the call.
        if REQUEST_ID not in self.metadata:
            self.id = usable_id(request.id) or self.id
        return InferRequest(
            request.model,
            request.rows,
            request.inputs,
            self.id,
            min(self.timeout_s, request.timeout_s),
            request.outputs,
            request.priority or priority_in(self.metadata),
            request.version or version,
            request.key or text_in(self.metadata, KEY),
            request.shared,
            self.trace,
        )

    def answered(self, response: InferResponse) -> None:
        """Name the version that answered, and what took it so long."""
        self.timing = response.timing
        if response.version != self.named.version:
            self.named = Named(response.model, response.version)


# Decodes the body, asks the engine and encodes its answer, telling the Call what it learns.
Serve: TypeAlias = Callable[[bytes, Call], Awaitable[bytes]]


class Calls:
    """Take calls until told to stop, refusing messages over ``max_message_bytes``.

    ``model_keys`` has, by path, the metadata that names the model, if the message does not.
    """

    def __init__(
        self, engine: Engine, max_message_bytes: int, model_keys: Mapping[str, str]
    ) -> None:
        self._engine = engine
        self._model_keys = model_keys
        self.max_message_bytes = max_message_bytes
        self._closing = False
        self._closed = asyncio.Event()

    def hold(self) -> None:
        """Take no more requests: new calls wait for ``close``, which refuses them all at once."""
        self._closing = True

    def close(self) -> None:
        """Refuse the calls held and those still to come."""
        self._closing = True
        self._closed.set()

    async def unary(self, serve: Serve, body: bytes, arrival: Arrival) -> Reply:
        """Answer a call of one request, or refuse it."""
        call = self._call(arrival)
        outcome = await self.attempt(serve, body, call)
        if isinstance(outcome, ServingError):
            return refusal(outcome, call.id)
        return Reply(grpc.StatusCode.OK, outcome, "", ((REQUEST_ID, call.id),))

    def refused(self, arrival: Arrival, failure: ServingError) -> Reply:
        """Report a call that was turned away before it had a request; return how it ends."""
        call = self._call(arrival)
        self._record(call, failure)
        return refusal(failure, call.id)

    def begin(self, arrival: Arrival, began_s: float) -> Call:
        """Return a request that began so, of the call that arrived."""
        trace = span_of(self._engine.observer, arrival.metadata, began_s)
        return Call(arrival, began_s, trace)

    def _call(self, arrival: Arrival) -> Call:
        call = self.begin(arrival, arrival.began_s)
        model_key = self._model_keys.get(arrival.path)
        if model_key is not None:
            model, version = (text_in(call.metadata, key) for key in (model_key, VERSION))
            call.named = named(self._engine, model, version)
        return call

    async def attempt(self, serve: Serve, body: bytes, call: Call) -> bytes | ServingError:
        """Return the answer to one request or why there is none; the observer hears of it once."""
        try:
            outcome = await outcome_of(self._serve(serve, body, call), lambda: call.id)
        except asyncio.CancelledError as cancelled:
            failure = _why_cancelled(call)
            failure.version = version_noted(cancelled)
            self._record(call, failure, len(body))
            raise
        if isinstance(outcome, ServingError):
            self._record(call, outcome, len(body))
        else:
            self._record(call, None, len(body), len(outcome))
        return outcome

    async def _serve(self, serve: Serve, body: bytes, call: Call) -> bytes:
        if self._closing:
            await self._closed.wait()
            raise ServingError(Code.UNAVAILABLE, "the server is shutting down")
        if len(body) > self.max_message_bytes:
            raise too_large(len(body), self.max_message_bytes)
        call.timeout_s = call.arrival.left_s
        if call.timeout_s <= 0:
            raise ServingError(Code.DEADLINE_EXCEEDED, "the deadline passed before the call began")
        return await serve(body, call)

    def _record(
        self, call: Call, failure: ServingError | None, bytes_in: int = 0, bytes_out: int = 0
    ) -> None:
        if failure is not None and failure.version:
            call.named = Named(call.named.model, failure.version)
        self._engine.observer.answered(
            Answered(
                transport="grpc",
                model=call.named.model,
                version=call.named.version,
                rows=call.rows,
                code=failure.code if failure else None,
                duration_s=time.perf_counter() - call.began_s,
                request_id=call.id,
                detail=failure.detail if failure else "",
                trace_id=call.trace.trace_id if call.trace else own_trace(call.metadata),
                trace=call.trace,
                operation=call.arrival.path[1:],
                protocol="2",
                bytes_in=bytes_in,
                bytes_out=bytes_out,
                timing=call.timing,
            )
        )


def too_large(size_bytes: int, limit_bytes: int) -> ServingError:
    """Return the refusal of a message."""
    return ServingError(
        Code.PAYLOAD_TOO_LARGE,
        f"message has {size_bytes} bytes, the limit is {limit_bytes} "
        "(option max_message_bytes of the grpc transport)",
    )


def _why_cancelled(call: Call) -> ServingError:
    """Tell a client that gave up from one whose deadline made its library cancel the call."""
    # `grpc-timeout` has three digits, rounded up, so our copy of the deadline is up to 1 % late.
    late_s = 0.001 + (call.timeout_s / 100 if call.timeout_s < math.inf else 0)
    if call.arrival.left_s <= late_s:
        return ServingError(Code.DEADLINE_EXCEEDED, "the client's deadline passed")
    return ServingError(Code.CANCELLED, "the client left")
