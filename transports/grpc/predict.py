"""``predictor.Predictor/Predict``: TorchRec's wire."""

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

    async def predict(self, body: bytes, arrival: Arrival) -> Reply:
        """Answer one call, or refuse it."""
        return await self._calls.unary(self._scores, body, arrival)

    async def _scores(self, body: bytes, call: Call) -> bytes:
        version = text_in(call.metadata, VERSION)
        spec = self._engine.spec(text_in(call.metadata, _MODEL), version)
        request = call.merged(decode_request(body, spec.name), version)
        response = await self._engine.infer(request)
        call.answered(response)
        return encode_response(response)
