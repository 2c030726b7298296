"""``predictor.Predictor/Predict``: TorchRec's wire."""

from collections.abc import Awaitable

from scheduler.engine import Engine
from transports.codecs.predictor import decode_request, encode_response
from transports.grpc.calls import Call, Calls
from transports.grpc.metadata import VERSION, text_in
from transports.grpc.methods import Arrival, Reply, Unary

SERVICE = "predictor.Predictor"

_PATH = f"/{SERVICE}/Predict"
# Metadata of a call: the model that it is for, which the message cannot say.
_MODEL = "narsil-model"
MODEL_KEYS = {_PATH: _MODEL}


class PredictService:
    """Answer calls through ``engine``."""

    def __init__(self, engine: Engine, calls: Calls) -> None:
        self._engine = engine
        self._calls = calls

    def unary(self) -> dict[str, Unary]:
        """Return the methods by path."""
        return {_PATH: self.predict}

    def predict(self, body: bytes, arrival: Arrival) -> Awaitable[Reply]:
        """Answer one call, or refuse it."""
        return self._calls.unary(self._scores, body, arrival)

    async def _scores(self, body: bytes, call: Call) -> bytes:
        version = text_in(call.metadata, VERSION)
        # Only what is not served has to be looked up once more: for the error.
        model = call.named.model or self._engine.spec(text_in(call.metadata, _MODEL), version).name
        request = call.merged(decode_request(body, model), version)
        response = await self._engine.infer(request)
        call.answered(response)
        return encode_response(response)
