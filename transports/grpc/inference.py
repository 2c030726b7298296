"""``inference.GRPCInferenceService``: the Open Inference Protocol, version 2."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from scheduler.engine import Engine
from scheduler.errors import ServingError
from transports.codecs.oip_protobuf import decode_request, encode_response, parse_request
from transports.grpc.calls import Call, Calls
from transports.grpc.management import Management
from transports.grpc.stream import Streams
from transports.named import named
from transports.proto.open_inference_pb2 import ModelInferResponse, ModelStreamInferResponse

SERVICE = "inference.GRPCInferenceService"


class InferenceService:
    """Answer calls through ``engine``; ``management`` has the methods that are no inference."""

    def __init__(self, engine: Engine, calls: Calls, management: Management) -> None:
        self._engine = engine
        self._calls = calls
        self._management = management
        self._streams = Streams(self._stream_answer)

    def method_handlers(self) -> grpc.GenericRpcHandler:
        """Return what grpcio registers for the service."""
        handlers = {
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self.infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self.stream_infer),
            **self._management.handlers(),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def close(self) -> None:
        """End every stream once what it has under way is answered."""
        self._streams.close()

    async def infer(self, body: bytes, context: Any) -> bytes:
        """Answer one call, or refuse it."""
        return await self._calls.unary(self._scores, body, context)

    async def stream_infer(self, bodies: AsyncIterator[bytes], context: Any) -> None:
        """Answer each request of a stream; an error is the answer to its request alone."""
        await self._streams.serve(bodies, context)

    async def _scores(self, body: bytes, call: Call) -> bytes:
        return (await self._response(body, call)).SerializeToString()

    async def _stream_answer(self, body: bytes, context: Any) -> bytes:
        call = Call(context)
        outcome = await self._calls.attempt(self._stream_scores, body, call)
        if not isinstance(outcome, ServingError):
            return outcome
        # Its id is all that tells the client which request the error is about.
        return ModelStreamInferResponse(
            error_message=outcome.detail, infer_response=ModelInferResponse(id=call.message_id)
        ).SerializeToString()

    async def _stream_scores(self, body: bytes, call: Call) -> bytes:
        response = await self._response(body, call)
        return ModelStreamInferResponse(infer_response=response).SerializeToString()

    async def _response(self, body: bytes, call: Call) -> ModelInferResponse:
        message = parse_request(body)
        call.message_id = message.id
        call.named = named(self._engine, message.model_name, message.model_version)
        spec = self._engine.spec(message.model_name, message.model_version)
        call.merge(decode_request(message, spec))
        return encode_response(await self._engine.infer(call.request), message)
