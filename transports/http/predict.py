"""``POST /v1/models/{model}[/versions/{version}]/predict`` and ``/v1/predict``.

JSON or TorchRec's protobuf.
"""

import re
from collections.abc import Mapping

from scheduler.types import InferRequest, InferResponse, ModelSpec
from transports.codecs import predict_json, predictor
from transports.http.call import Encode, Form, Headers, Target
from transports.http.head import JSON, PROTOBUF, media_type

_PREDICT = re.compile(r"/v1/models/([^/]+)(?:/versions/([^/]+))?/predict")


def target_in(path: str) -> Target | None:
    """Return what a predict path asks for; None for any other path."""
    if path == "/v1/predict":
        return Target("", "", _form)
    found = _PREDICT.fullmatch(path) if path.endswith("/predict") else None
    return found and Target(found[1], found[2] or "", _form)


def _form(headers: Mapping[bytes, bytes]) -> Form:
    if media_type(headers) == JSON:
        return Form(json_bytes=None, decode=_decode_json)
    return Form(json_bytes=0, decode=_decode_protobuf)


def _decode_json(body: bytes, spec: ModelSpec) -> tuple[InferRequest, Encode]:
    return predict_json.decode_request(body, spec), _encode_json


def _decode_protobuf(body: bytes, spec: ModelSpec) -> tuple[InferRequest, Encode]:
    return predictor.decode_request(body, spec.name), _encode_protobuf


def _encode_json(response: InferResponse) -> tuple[Headers, bytes]:
    return [(b"content-type", JSON.encode())], predict_json.encode_response(response)


def _encode_protobuf(response: InferResponse) -> tuple[Headers, bytes]:
    return [(b"content-type", PROTOBUF.encode())], predictor.encode_response(response)
