"""``predictor.Predictor/Predict``: TorchRec's wire."""

from typing import Any

import grpc

from scheduler.engine import Engine
from transports.codecs.predictor import decode_request, encode_response
from transports.grpc.calls import Call, Calls

SERVICE = "predictor.Predictor"

# Metadata of a call: the model that it is for, which the message cannot say.
_MODEL = "narsil-model"


class PredictService:
    """Answer calls through ``engine``."""

    def __init__(self, engine: Engine, calls: Calls) -> None:
        self._engine = engine
        self._calls = calls

    def method_handlers(self) -> grpc.GenericRpcHandler:
        """Return what grpcio registers for the service."""
        handlers = {"Predict": grpc.unary_unary_rpc_method_handler(self.predict)}
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def predict(self, body: bytes, context: Any) -> bytes:
        """Answer one call, or refuse it."""
        return await self._calls.unary(self._scores, body, context, _MODEL)

    async def _scores(self, body: bytes, call: Call) -> bytes:
        model = self._engine.spec(call.metadata.get(_MODEL, "")).name
        call.merge(decode_request(body, model))
        return encode_response(await self._engine.infer(call.request))
