"""``inference.GRPCInferenceService``: the Open Inference Protocol, version 2."""

from collections.abc import AsyncIterator

from scheduler.engine import Engine
from scheduler.errors import ServingError
from transports.codecs.oip_protobuf import (
    decode_request,
    encode_response,
    output_places,
    parse_request,
)
from transports.codecs.oip_shared import SharedMemory, check_room
from transports.grpc.calls import Call, Calls
from transports.grpc.management import Management
from transports.grpc.methods import Arrival, Reply, Send, Stream, Unary
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
        self._streams = Streams(calls.begin, self._stream_answer)

    def unary(self) -> dict[str, Unary]:
        """Return the methods of one request by path."""
        methods = {"ModelInfer": self.infer, **self._management.methods()}
        return {f"/{SERVICE}/{name}": method for name, method in methods.items()}

    def streams(self) -> dict[str, Stream]:
        """Return the methods of many requests by path."""
        return {f"/{SERVICE}/ModelStreamInfer": self.stream_infer}

    def close(self) -> None:
        """End every stream once what it has under way is answered."""
        self._streams.close()

    async def infer(self, body: bytes, arrival: Arrival) -> Reply:
        """Answer one call, or refuse it."""
        return await self._calls.unary(self._scores, body, arrival)

    async def stream_infer(
        self, bodies: AsyncIterator[bytes], arrival: Arrival, send: Send
    ) -> Reply:
        """Answer each request of a stream; an error is the answer to its request alone."""
        return await self._streams.serve(bodies, arrival, send)

    async def _scores(self, body: bytes, call: Call) -> bytes:
        return (await self._response(body, call)).SerializeToString()

    async def _stream_answer(self, body: bytes, call: Call) -> bytes:
        outcome = await self._calls.attempt(self._stream_scores, body, call)
        if not isinstance(outcome, ServingError):
            return outcome
        # Its id is all that tells the client which request the error is about.
        return ModelStreamInferResponse(
            error_message=outcome.detail, infer_response=ModelInferResponse(id=call.message_id)
        ).SerializeToString()

    async def _stream_scores(self, body: bytes, call: Call) -> bytes:
        if call.arrival.caller is not None:
            call.arrival.caller.begin()
        response = await self._response(body, call)
        return ModelStreamInferResponse(infer_response=response).SerializeToString()

    async def _response(self, body: bytes, call: Call) -> ModelInferResponse:
        message = parse_request(body)
        call.message_id = message.id
        call.named = named(self._engine, message.model_name, message.model_version)
        spec = self._engine.spec(message.model_name, message.model_version)
        memory = SharedMemory(self._engine.regions, self._calls.max_message_bytes)
        decoded = decode_request(message, spec, memory)
        places = output_places(message, memory)
        check_room(spec, decoded.rows, places)
        response = await self._engine.infer(call.merged(decoded))
        call.answered(response)
        return encode_response(response, message, places)
