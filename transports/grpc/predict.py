"""``predictor.Predictor/Predict``: from a call's bytes and metadata to its answer or status.

The method is registered without message classes: grpcio hands over bytes, the codec parses once.
"""

import asyncio
import dataclasses
import logging
import math
import time
import uuid
from typing import Any

import grpc

from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.observer import Answered
from scheduler.types import InferRequest
from transports.codecs.predictor import decode_request, encode_response
from transports.status import STATUS

logger = logging.getLogger(__name__)

SERVICE = "predictor.Predictor"

# Metadata of a call: its own id, echoed in the trailers, and the model it is for.
_REQUEST_ID = "x-request-id"
_MODEL = "narsil-model"
_MAX_ID_CHARS = 128
# Trailers above 8 KiB break the client's whole call, and percent-encoding can triple a detail.
_MAX_DETAIL_CHARS = 1024


class PredictHandler:
    """Answer calls through ``engine``, refusing messages over ``max_message_bytes``."""

    def __init__(self, engine: Engine, max_message_bytes: int) -> None:
        self._engine = engine
        self._max_message_bytes = max_message_bytes
        self._closing = False
        self._closed = asyncio.Event()

    def method_handlers(self) -> grpc.GenericRpcHandler:
        """Return what grpcio registers for the service."""
        handlers = {"Predict": grpc.unary_unary_rpc_method_handler(self.predict)}
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def hold(self) -> None:
        """Take no more requests: new calls wait for ``close``, which refuses them all at once."""
        self._closing = True

    def close(self) -> None:
        """Refuse the calls held and, after ``hold``, those still to come."""
        self._closed.set()

    async def predict(self, body: bytes, context: Any) -> bytes:
        """Answer one call, or abort it; the observer hears of it exactly once."""
        started_s = time.perf_counter()
        metadata = dict(context.invocation_metadata())
        request_id = metadata.get(_REQUEST_ID, "")[:_MAX_ID_CHARS] or uuid.uuid4().hex
        # What is known of the request so far; replaced as more becomes known.
        request = InferRequest(model="", rows=0, inputs={}, id=request_id)
        try:
            await self._refuse_if_closing()
            model = self._engine.spec(metadata.get(_MODEL, "")).name
            request = dataclasses.replace(request, model=model)
            request = self._decode(body, request, context)
            answer = encode_response(await self._engine.infer(request))
        except ServingError as error:
            failure = error
        except asyncio.CancelledError:
            if _cancelled_by_grpc():
                self._record(request, started_s, _why_cancelled(request, context))
                raise
            # Raised as it is, with the call still open, it would leave the client without a status.
            failure = ServingError(Code.CANCELLED, "the server cancelled the request")
        except Exception:
            logger.exception("request %s: unexpected error", request_id)
            failure = ServingError(Code.INTERNAL, f"internal error; request id {request_id}")
        else:
            context.set_trailing_metadata(((_REQUEST_ID, request_id),))
            self._record(request, started_s, None)
            return answer
        self._record(request, started_s, failure)
        return await _abort(context, failure, request_id)

    async def _refuse_if_closing(self) -> None:
        if self._closing:
            await self._closed.wait()
            raise ServingError(Code.UNAVAILABLE, "the server is shutting down")

    def _decode(self, body: bytes, known: InferRequest, context: Any) -> InferRequest:
        if len(body) > self._max_message_bytes:
            raise ServingError(
                Code.PAYLOAD_TOO_LARGE,
                f"message has {len(body)} bytes, the limit is {self._max_message_bytes} "
                "(option max_message_bytes of the grpc transport)",
            )
        timeout_s = context.time_remaining()
        if timeout_s is not None and timeout_s <= 0:
            raise ServingError(Code.DEADLINE_EXCEEDED, "the deadline passed before the call began")
        request = decode_request(body, known.model)
        return dataclasses.replace(
            request, id=known.id, timeout_s=math.inf if timeout_s is None else timeout_s
        )

    def _record(
        self, request: InferRequest, started_s: float, failure: ServingError | None
    ) -> None:
        self._engine.observer.answered(
            Answered(
                transport="grpc",
                model=request.model,
                rows=request.rows,
                code=failure.code if failure else None,
                duration_s=time.perf_counter() - started_s,
                request_id=request.id,
                detail=failure.detail if failure else "",
            )
        )


def _cancelled_by_grpc() -> bool:
    """Tell grpcio cancelling this call's task from a future within being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _why_cancelled(request: InferRequest, context: Any) -> ServingError:
    """Tell a client that gave up from one whose deadline made its library cancel the call."""
    left_s = context.time_remaining()
    # `grpc-timeout` has three digits, rounded up, so our copy of the deadline is up to 1 % late.
    if left_s is not None and left_s <= 0.001 + request.timeout_s / 100:
        return ServingError(Code.DEADLINE_EXCEEDED, "the client's deadline passed")
    return ServingError(Code.CANCELLED, "the client left")


async def _abort(context: Any, failure: ServingError, request_id: str) -> bytes:
    trailers = [(_REQUEST_ID, request_id)]
    if failure.retry_after_s is not None:
        trailers.append(("grpc-retry-pushback-ms", str(math.ceil(failure.retry_after_s * 1000))))
    detail = failure.detail[:_MAX_DETAIL_CHARS]
    await context.abort(STATUS[failure.code].grpc, detail, tuple(trailers))
    raise AssertionError("abort raises")
