"""``predictor.Predictor/Predict``: TorchRec's wire."""

from scheduler.engine import Engine
from scheduler.types import InferRequest, InferResponse
from transports.codecs.predictor import decode_request, encode_response
from transports.grpc.call import Call, Codec
from transports.grpc.calls import Calls
from transports.grpc.metadata import VERSION, text_in
from transports.grpc.methods import Answering, Arrival, Direct, Replied

SERVICE = "predictor.Predictor"

_PATH = f"/{SERVICE}/Predict"
# Metadata of a call: the model that it is for, which the message cannot say.
_MODEL = "narsil-model"
MODEL_KEYS = {_PATH: _MODEL}


class PredictService(Codec):
    """Answer calls through ``engine``."""

    def __init__(self, engine: Engine, calls: Calls) -> None:
        self._engine = engine
        self._calls = calls

    def direct(self) -> dict[str, Direct]:
        """Return the methods by path."""
        return {_PATH: self.predict}

    def predict(self, body: bytes, arrival: Arrival, replied: Replied) -> Answering:
        """Answer one call, or refuse it."""
        return self._calls.unary(self, body, arrival, replied)

    def request(self, body: bytes, call: Call) -> InferRequest:
        """Decode ``body``."""
        version = text_in(call.metadata, VERSION)
        # Only what is not served has to be looked up once more: for the error.
        model = call.named.model or self._engine.spec(text_in(call.metadata, _MODEL), version).name
        return call.merged(decode_request(body, model), version)

    def body(self, response: InferResponse, call: Call) -> bytes:
        """Encode ``response``."""
        del call
        return encode_response(response)
