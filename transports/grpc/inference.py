"""``inference.GRPCInferenceService``: the Open Inference Protocol, version 2."""

from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

from scheduler.engine import Engine
from scheduler.errors import ServingError
from scheduler.types import InferRequest, InferResponse
from transports.codecs.oip_protobuf import (
    decode_request,
    encode_response,
    output_places,
    parse_request,
)
from transports.codecs.oip_shared import Places, SharedMemory, check_room
from transports.grpc.call import Call, Codec
from transports.grpc.calls import AwaitedCall, Calls
from transports.grpc.management import Management
from transports.grpc.methods import Answering, Arrival, Direct, Replied, Reply, Send, Stream, Unary
from transports.grpc.stream import Streams
from transports.named import named
from transports.proto.open_inference_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)

SERVICE = "inference.GRPCInferenceService"


class _Asked(NamedTuple):
    """What the answer is made by: the request's message, and where its tensors go."""

    message: ModelInferRequest
    places: Places


class _Answers(Codec):
    """The messages of ModelInfer."""

    def __init__(self, engine: Engine, max_message_bytes: int) -> None:
        self._engine = engine
        self._max_message_bytes = max_message_bytes

    def request(self, body: bytes, call: Call) -> InferRequest:
        """Decode ``body``, whose model and version the message names."""
        message = parse_request(body)
        call.message_id = message.id
        call.named = named(self._engine, message.model_name, message.model_version)
        spec = self._engine.spec(message.model_name, message.model_version)
        memory = SharedMemory(self._engine.regions, self._max_message_bytes)
        decoded = decode_request(message, spec, memory)
        places = output_places(message, memory)
        check_room(spec, decoded.rows, places)
        call.context = _Asked(message, places)
        return call.merged(decoded)

    def body(self, response: InferResponse, call: Call) -> bytes:
        """Encode ``response``."""
        return _message(response, call).SerializeToString()


class _StreamAnswers(_Answers):
    """The messages of ModelStreamInfer."""

    def request(self, body: bytes, call: Call) -> InferRequest:
        """Decode ``body``; each request of a stream counts by itself."""
        if call.arrival.caller is not None:
            call.arrival.caller.begin()
        return super().request(body, call)

    def body(self, response: InferResponse, call: Call) -> bytes:
        """Encode ``response``."""
        infer_response = _message(response, call)
        return ModelStreamInferResponse(infer_response=infer_response).SerializeToString()


def _message(response: InferResponse, call: Call) -> ModelInferResponse:
    asked = call.context
    assert isinstance(asked, _Asked)
    return encode_response(response, asked.message, asked.places)


class InferenceService:
    """Answer calls through ``engine``; ``management`` has the methods that are no inference."""

    def __init__(self, engine: Engine, calls: Calls, management: Management) -> None:
        self._calls = calls
        self._management = management
        self._codec = _Answers(engine, calls.max_message_bytes)
        stream_codec = _StreamAnswers(engine, calls.max_message_bytes)
        self._streams = Streams(partial(calls.one_of, stream_codec), _stream_answer)

    def direct(self) -> dict[str, Direct]:
        """Return the methods of inference of one request by path."""
        return {f"/{SERVICE}/ModelInfer": self.infer}

    def unary(self) -> dict[str, Unary]:
        """Return the other methods of one request by path."""
        methods = self._management.methods()
        return {f"/{SERVICE}/{name}": method for name, method in methods.items()}

    def streams(self) -> dict[str, Stream]:
        """Return the methods of many requests by path."""
        return {f"/{SERVICE}/ModelStreamInfer": self.stream_infer}

    def close(self) -> None:
        """End every stream once what it has under way is answered."""
        self._streams.close()

    def infer(self, body: bytes, arrival: Arrival, replied: Replied) -> Answering:
        """Answer one call, or refuse it."""
        return self._calls.unary(self._codec, body, arrival, replied)

    async def stream_infer(
        self, bodies: AsyncIterator[bytes], arrival: Arrival, send: Send
    ) -> Reply:
        """Answer each request of a stream; an error is the answer to its request alone."""
        return await self._streams.serve(bodies, arrival, send)


async def _stream_answer(body: bytes, call: AwaitedCall) -> bytes:
    outcome = await call.outcome(body)
    if not isinstance(outcome, ServingError):
        return outcome
    # Its id is all that tells the client which request the error is about.
    return ModelStreamInferResponse(
        error_message=outcome.detail, infer_response=ModelInferResponse(id=call.message_id)
    ).SerializeToString()
