"""One request of a caller: head, tensors, engine, answer, record."""

import asyncio
import dataclasses
import logging
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.access import Caller
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError, invalid
from scheduler.observer import Answered
from scheduler.types import Array, InferRequest, InferResponse, ModelSpec, Timing
from transports.codecs.oip_request import decode
from transports.codecs.oip_tensors import datatype_of, tensor_from_raw
from transports.collective.budget import Budget
from transports.collective.carriers import Carrier, CarrierGoneError
from transports.collective.channel import Channel
from transports.collective.layout import TRAILER, places
from transports.collective.messages import Answer, Ask, Failure, Proceed, TensorHead
from transports.named import Named, named
from transports.trace import trace_id

logger = logging.getLogger(__name__)

OPERATION = "collective/Predict"
_MAX_ID_CHARS = 128
_MAX_DETAIL_CHARS = 1024


@dataclass(frozen=True, slots=True)
class Meeting:
    """A caller and its carrier; ``caller`` is who it is, where callers need API keys."""

    engine: Engine
    budget: Budget
    channel: Channel
    carrier: Carrier
    caller: Caller | None


class Call:
    """Answer ``ask`` once, with scores or why there are none; ``sending`` once those leave."""

    def __init__(self, meeting: Meeting, ask: Ask) -> None:
        self._meeting = meeting
        self._ask = ask
        self._began_s = time.perf_counter()
        self._id = _own_id(ask)
        self._trace = meeting.engine.observer.traced(ask.traceparent, "", self._began_s)
        self._named = Named()
        self._rows = self._bytes_in = self._bytes_out = 0
        self._timing: Timing | None = None
        self._inferring: asyncio.Task[None] | None = None
        self._cancelled = False
        self.sending = False

    @property
    def number(self) -> int:
        """The request's number on its connection."""
        return self._ask.number

    def cancel(self) -> None:
        """Stop waiting for the scores. Tensors on their way are let through first."""
        self._cancelled = True
        if self._inferring is not None:
            self._inferring.cancel()

    async def answer(self) -> None:
        """Answer. Raises CarrierGoneError: the tensors cannot travel; the connection is over."""
        failure: ServingError | None = None
        try:
            await self._scores()
        except ServingError as error:
            failure = error.with_traceback(None)
            self._refuse(failure)
        except CarrierGoneError as error:
            failure = ServingError(Code.CANCELLED, f"the tensors did not come through: {error}")
            raise
        except asyncio.CancelledError:
            failure = _left()
            raise
        except Exception:
            logger.exception("request %s: unexpected error", self._id)
            failure = ServingError(Code.INTERNAL, f"internal error; request id {self._id}")
            self._refuse(failure)
        finally:
            self._meeting.budget.give_back(self._bytes_in)
            self._record(failure)

    async def _scores(self) -> None:
        ask, engine = self._ask, self._meeting.engine
        self._named = named(engine, ask.model, ask.version)
        if self._meeting.caller is not None:
            self._meeting.caller.begin()
        spec = engine.spec(ask.model, ask.version)
        wanted, size_bytes = places(ask.tensors)
        self._meeting.budget.take(size_bytes)
        self._bytes_in = size_bytes
        self._meeting.channel.send(Proceed(ask.number))
        content = await self._meeting.carrier.receive(size_bytes)
        request = self._merged(_decoded(ask, spec, content, wanted))
        response = await self._infer(request)
        self._timing = response.timing
        if response.version != self._named.version:
            self._named = Named(response.model, response.version)
        await self._send(response)

    def _merged(self, request: InferRequest) -> InferRequest:
        """Return the decoded ``request`` with what the head says. Raises ServingError."""
        self._rows = request.rows
        if self._meeting.caller is not None:
            self._meeting.caller.spend(request.rows)
        ask = self._ask
        return dataclasses.replace(
            request,
            model=ask.model or request.model,
            version=ask.version,
            id=self._id,
            timeout_s=self._left_s(),
            priority=ask.priority,
            key=ask.key,
            trace=self._trace,
        )

    def _left_s(self) -> float:
        """Return how long the caller still waits. Raises ServingError if it no longer does."""
        given_s = self._ask.timeout_s
        if given_s is None:
            return math.inf
        left_s = given_s - (time.perf_counter() - self._began_s)
        if left_s <= 0 < given_s:
            raise ServingError(Code.DEADLINE_EXCEEDED, "the deadline passed before the call began")
        return left_s if given_s > 0 else given_s  # no time at all is refused by the scheduler

    async def _infer(self, request: InferRequest) -> InferResponse:
        self._check_wanted()
        self._inferring = asyncio.current_task()
        limit_s = request.timeout_s if 0 < request.timeout_s < math.inf else None
        try:
            async with asyncio.timeout(limit_s):
                return await self._meeting.engine.infer(request)
        except TimeoutError as error:
            raise ServingError(Code.DEADLINE_EXCEEDED, "the client's deadline passed") from error
        except asyncio.CancelledError:
            self._check_wanted()
            raise  # the connection is ending
        finally:
            self._inferring = None

    def _check_wanted(self) -> None:
        if self._cancelled:
            raise _left()

    async def _send(self, response: InferResponse) -> None:
        arrays = _outputs(response.outputs, self._ask.outputs)
        heads = tuple(
            TensorHead(name, datatype_of(array.dtype), array.shape)
            for name, array in arrays.items()
        )
        where, size_bytes = places(heads)
        self._meeting.budget.check(size_bytes)
        write = self._meeting.carrier.write
        for place, array in zip(where, arrays.values(), strict=True):
            write(place, array.reshape(-1).view(np.uint8))
        trailer = np.frombuffer(TRAILER.pack(self.number), np.uint8)
        write(slice(size_bytes - TRAILER.size, size_bytes), trailer)
        self._bytes_out = size_bytes
        self.sending = True
        answer = Answer(self.number, heads, response.model, response.version)
        self._meeting.channel.send(answer)
        await self._meeting.carrier.send(size_bytes)

    def _refuse(self, failure: ServingError) -> None:
        detail = failure.detail[:_MAX_DETAIL_CHARS]
        code = failure.code.value
        self._meeting.channel.send(Failure(self.number, code, detail, failure.retry_after_s))

    def _record(self, failure: ServingError | None) -> None:
        if failure is not None and failure.version:
            self._named = Named(self._named.model, failure.version)
        self._meeting.engine.observer.answered(
            Answered(
                transport="collective",
                model=self._named.model,
                version=self._named.version,
                rows=self._rows,
                code=failure.code if failure else None,
                duration_s=time.perf_counter() - self._began_s,
                request_id=self._id,
                detail=failure.detail if failure else "",
                trace_id=self._trace.trace_id if self._trace else trace_id(self._ask.traceparent),
                trace=self._trace,
                operation=OPERATION,
                bytes_in=self._bytes_in,
                bytes_out=self._bytes_out,
                timing=self._timing,
            )
        )


def _own_id(ask: Ask) -> str:
    """Return the id that the caller gave the request, as far as logs can carry it, or a new one."""
    given = ask.request_id
    usable = given[:_MAX_ID_CHARS] if given.isascii() and given.isprintable() else ""
    return usable or trace_id(ask.traceparent) or f"{random.getrandbits(128):032x}"


def _left() -> ServingError:
    return ServingError(Code.CANCELLED, "the client left")


def _decoded(ask: Ask, spec: ModelSpec, content: bytes, where: Sequence[slice]) -> InferRequest:
    """Return the request that the tensors make. Raises ServingError (INVALID_REQUEST)."""
    if content[-TRAILER.size :] != TRAILER.pack(ask.number):
        raise invalid(
            f"tensors: the {len(content)} bytes announced did not come, or not as one message"
        )
    view = memoryview(content)
    tensors = [
        tensor_from_raw(head.name, head.datatype, head.shape, view[place])
        for head, place in zip(ask.tensors, where, strict=True)
    ]
    return decode(spec, tensors, ask.outputs)


def _outputs(found: Mapping[str, Array], asked: Sequence[str]) -> dict[str, Array]:
    """Return the outputs asked for (none: all), little-endian and row-major."""
    return {
        name: np.ascontiguousarray(found[name], found[name].dtype.newbyteorder("<"))
        for name in asked or found
    }
