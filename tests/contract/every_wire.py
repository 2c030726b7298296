"""Every protocol over every transport, asked in one way and answering in one way."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

import grpc.aio
import httpx
import numpy as np
import orjson

from scheduler.errors import Code
from scheduler.types import Array, InferRequest, ModelSpec
from tests.fixtures.oip_grpc import SERVICE as OIP_SERVICE
from tests.fixtures.oip_grpc import message_of, scores_of
from tests.fixtures.oip_http import binary_body, json_body, read_answer
from tests.fixtures.requests import as_json, as_protobuf
from tests.fixtures.serving import Served
from tests.fixtures.stub_serving import problem
from transports.codecs.predictor_client import decode_response
from transports.http3.client import Http3Client
from transports.proto.open_inference_pb2 import ModelInferResponse
from transports.status import STATUS

Headers: TypeAlias = Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """Scores as bytes, or the codes that the status may mean, the status and the words."""

    scores: bytes = b""
    codes: frozenset[Code] = frozenset()
    status: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Protocol:
    """How a request is written and its answer read; ``headers`` are those of any body of it."""

    encode: Callable[[InferRequest, ModelSpec], tuple[Headers, bytes]]
    decode: Callable[[Headers, bytes], Array]
    path: str
    headers: Headers


def _oip_scores(headers: Headers, body: bytes) -> Array:
    return read_answer(headers, body).outputs["default"]


def _json_scores(_: Headers, body: bytes) -> Array:
    return np.array(orjson.loads(body)["predictions"]["default"], np.float32)


def _protobuf_scores(_: Headers, body: bytes) -> Array:
    return decode_response(body)["default"]


PREDICT, OIP = "/v1/models/{}/predict", "/v2/models/{}/infer"
JSON, PROTOBUF = {"content-type": "application/json"}, {"content-type": "application/x-protobuf"}
HTTP = {
    "JSON": Protocol(lambda r, spec: (JSON, as_json(r, spec)), _json_scores, PREDICT, JSON),
    "protobuf": Protocol(
        lambda r, _: (PROTOBUF, as_protobuf(r)), _protobuf_scores, PREDICT, PROTOBUF
    ),
    "OIP JSON": Protocol(lambda r, _: ({}, json_body(r.inputs)), _oip_scores, OIP, {}),
    "OIP binary": Protocol(
        lambda r, _: binary_body(r.inputs),
        _oip_scores,
        OIP,
        {"inference-header-content-length": "2"},
    ),
}
# A status, headers and a body.
Answered: TypeAlias = tuple[int, Headers, bytes]
# Sends a body to a path.
Send: TypeAlias = Callable[[str, Headers, bytes], Awaitable[Answered]]


class Asker:
    """One protocol over one transport."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    async def ask(self, request: InferRequest, model: str = "") -> Outcome:
        """Ask for the scores of ``request``."""
        raise NotImplementedError

    async def ask_bytes(self, body: bytes) -> Outcome:
        """Send ``body`` as it is."""
        raise NotImplementedError


class HttpAsker(Asker):
    """A protocol over HTTP, whichever version ``send`` speaks."""

    def __init__(self, spec: ModelSpec, protocol: Protocol, send: Send) -> None:
        super().__init__(spec)
        self._protocol = protocol
        self._send = send

    async def ask(self, request: InferRequest, model: str = "") -> Outcome:
        headers, body = self._protocol.encode(request, self._spec)
        return await self._post(headers, body, model or self._spec.name)

    async def ask_bytes(self, body: bytes) -> Outcome:
        return await self._post(self._protocol.headers, body, self._spec.name)

    async def _post(self, headers: Headers, body: bytes, model: str) -> Outcome:
        path = self._protocol.path.format(model)
        status, answered, content = await self._send(path, headers, body)
        if status == 200:
            return Outcome(self._protocol.decode(answered, content).tobytes())
        codes = frozenset(code for code, known in STATUS.items() if known.http == status)
        return Outcome(b"", codes, str(status), problem(content, status)["detail"])


class PredictorAsker(Asker):
    """TorchRec's Predict."""

    def __init__(self, spec: ModelSpec, channel: grpc.aio.Channel) -> None:
        super().__init__(spec)
        self._call = channel.unary_unary("/predictor.Predictor/Predict")

    async def ask(self, request: InferRequest, model: str = "") -> Outcome:
        metadata = (("narsil-model", model or self._spec.name),)
        return await self._answer(as_protobuf(request), metadata)

    async def ask_bytes(self, body: bytes) -> Outcome:
        return await self._answer(body, ())

    async def _answer(self, body: bytes, metadata: tuple[tuple[str, str], ...]) -> Outcome:
        try:
            answer = await self._call(body, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return _refused(error)
        return Outcome(decode_response(answer)["default"].tobytes())


class OipGrpcAsker(Asker):
    """ModelInfer with raw contents."""

    def __init__(self, spec: ModelSpec, channel: grpc.aio.Channel) -> None:
        super().__init__(spec)
        self._call = channel.unary_unary(f"/{OIP_SERVICE}/ModelInfer")

    async def ask(self, request: InferRequest, model: str = "") -> Outcome:
        message = message_of(request.inputs, model_name=model or self._spec.name)
        return await self.ask_bytes(message.SerializeToString())

    async def ask_bytes(self, body: bytes) -> Outcome:
        try:
            answer = await self._call(body)
        except grpc.aio.AioRpcError as error:
            return _refused(error)
        return Outcome(scores_of(ModelInferResponse.FromString(answer)).tobytes())


def _refused(error: grpc.aio.AioRpcError) -> Outcome:
    codes = frozenset(code for code, known in STATUS.items() if known.grpc == error.code())
    return Outcome(b"", codes, error.code().name, error.details() or "")


@asynccontextmanager
async def every_wire(served: Served) -> AsyncIterator[dict[str, Asker]]:
    """Connect to ``served`` in every way."""
    spec = served.engine.spec("")
    async with AsyncExitStack() as stack:
        options = [("grpc.max_send_message_length", -1)]
        target = urlsplit(served.urls["grpc"]).netloc
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(target, options))
        client = httpx.AsyncClient(base_url=served.urls["http"], timeout=30)
        http = await stack.enter_async_context(client)
        port = urlsplit(served.urls["http3"]).port or 0
        http3 = await stack.enter_async_context(Http3Client.connect("localhost", port, served.ca))

        async def http1_send(path: str, headers: Headers, body: bytes) -> Answered:
            answer = await http.post(path, content=body, headers=dict(headers))
            return answer.status_code, dict(answer.headers), answer.content

        async def http3_send(path: str, headers: Headers, body: bytes) -> Answered:
            answer = await http3.post(path, body, dict(headers))
            return answer.status, dict(answer.headers), answer.body

        yield {
            "gRPC predictor": PredictorAsker(spec, channel),
            "gRPC OIP": OipGrpcAsker(spec, channel),
            **{f"HTTP/1.1 {name}": HttpAsker(spec, p, http1_send) for name, p in HTTP.items()},
            **{f"HTTP/3 {name}": HttpAsker(spec, p, http3_send) for name, p in HTTP.items()},
        }
