"""One inference call over gRPC, whatever its service: its metadata, limits, status and record.

The services say only how bytes become a request and a response bytes. Methods are registered
without message classes: grpcio hands over bytes, a codec parses once.
"""

import asyncio
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.observer import Answered
from scheduler.types import InferRequest
from transports.grpc.metadata import REQUEST_ID, own_id, own_trace, priority_in, usable_id
from transports.grpc.outcome import outcome_of, refuse
from transports.named import Named, named


class Call:
    """One request on its way. ``request`` holds what is known of it so far.

    ``message_id`` is the id within its message, as it is written there. ``named`` is what it
    names of what was served when that was read.
    """

    def __init__(self, context: Any) -> None:
        self.started_s = time.perf_counter()
        self.metadata: Mapping[str, str] = dict(context.invocation_metadata())
        self.timeout_s = math.inf
        self.request = InferRequest(model="", rows=0, inputs={}, id=own_id(self.metadata))
        self.message_id = ""
        self.named = Named()
        self.context = context

    def merge(self, request: InferRequest) -> None:
        """Take the decoded ``request``; the call's own id, deadline and priority join its fields.

        Raises ServingError if the metadata say nonsense.
        """
        known = self.request.id
        self.request = dataclasses.replace(
            request,
            # The metadata's id, if there is one: it is what the client's logs call the call.
            id=known if REQUEST_ID in self.metadata else usable_id(request.id) or known,
            timeout_s=min(self.timeout_s, request.timeout_s),
            priority=request.priority or priority_in(self.metadata),
        )


# Decodes the body, asks the engine and encodes its answer, telling the Call what it learns.
Serve: TypeAlias = Callable[[bytes, Call], Awaitable[bytes]]


class Calls:
    """Take calls until told to stop, refusing messages over ``max_message_bytes``."""

    def __init__(self, engine: Engine, max_message_bytes: int) -> None:
        self._engine = engine
        self._max_message_bytes = max_message_bytes
        self._closing = False
        self._closed = asyncio.Event()

    def hold(self) -> None:
        """Take no more requests: new calls wait for ``close``, which refuses them all at once."""
        self._closing = True

    def close(self) -> None:
        """Refuse the calls held and, after ``hold``, those still to come."""
        self._closed.set()

    async def unary(
        self, serve: Serve, body: bytes, context: Any, model_key: str | None = None
    ) -> bytes:
        """Answer a call of one request, or refuse it.

        ``model_key`` is the metadata that names the model, if the message does not.
        """
        call = Call(context)
        if model_key is not None:
            call.named = named(self._engine, call.metadata.get(model_key, ""))
        outcome = await self.attempt(serve, body, call)
        if isinstance(outcome, ServingError):
            refuse(context, outcome, call.request.id)
            return b""
        context.set_trailing_metadata(((REQUEST_ID, call.request.id),))
        return outcome

    async def attempt(self, serve: Serve, body: bytes, call: Call) -> bytes | ServingError:
        """Return the answer to one request or why there is none; the observer hears of it once."""
        try:
            outcome = await outcome_of(self._serve(serve, body, call), lambda: call.request.id)
        except asyncio.CancelledError:
            self._record(call, _why_cancelled(call))
            raise
        self._record(call, outcome if isinstance(outcome, ServingError) else None)
        return outcome

    async def _serve(self, serve: Serve, body: bytes, call: Call) -> bytes:
        if self._closing:
            await self._closed.wait()
            raise ServingError(Code.UNAVAILABLE, "the server is shutting down")
        if len(body) > self._max_message_bytes:
            raise ServingError(
                Code.PAYLOAD_TOO_LARGE,
                f"message has {len(body)} bytes, the limit is {self._max_message_bytes} "
                "(option max_message_bytes of the grpc transport)",
            )
        left_s = call.context.time_remaining()
        if left_s is not None:
            if left_s <= 0:
                raise ServingError(
                    Code.DEADLINE_EXCEEDED, "the deadline passed before the call began"
                )
            call.timeout_s = left_s
        return await serve(body, call)

    def _record(self, call: Call, failure: ServingError | None) -> None:
        self._engine.observer.answered(
            Answered(
                transport="grpc",
                model=call.named.model,
                version=call.named.version,
                rows=call.request.rows,
                code=failure.code if failure else None,
                duration_s=time.perf_counter() - call.started_s,
                request_id=call.request.id,
                detail=failure.detail if failure else "",
                trace_id=own_trace(call.metadata),
            )
        )


def _why_cancelled(call: Call) -> ServingError:
    """Tell a client that gave up from one whose deadline made its library cancel the call."""
    left_s = call.context.time_remaining()
    # `grpc-timeout` has three digits, rounded up, so our copy of the deadline is up to 1 % late.
    if left_s is not None and left_s <= 0.001 + call.timeout_s / 100:
        return ServingError(Code.DEADLINE_EXCEEDED, "the client's deadline passed")
    return ServingError(Code.CANCELLED, "the client left")
