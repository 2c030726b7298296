"""``POST /v2/models/{model}[/versions/{version}]/infer``: the Open Inference Protocol."""

import re
from collections.abc import Mapping
from functools import partial

from scheduler.types import InferRequest, InferResponse, ModelSpec
from transports.codecs.oip_http import Asked, decode_request, encode_response
from transports.codecs.oip_shared import SharedMemory
from transports.http.call import Encode, Form, Headers, Target
from transports.http.head import JSON, whole

BINARY = "application/octet-stream"
JSON_BYTES = b"inference-header-content-length"

INFER = "/infer"
_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")


def target_in(path: str, memory: SharedMemory) -> Target | None:
    """Return what an infer path asks for; None for any other path."""
    found = _INFER.fullmatch(path) if path.endswith(INFER) else None
    return found and Target(found[1], found[2] or "", partial(_form, memory))


def _form(memory: SharedMemory, headers: Mapping[bytes, bytes]) -> Form:
    """Ask no content type: Triton's client sends none, and the length says what is what."""
    json_bytes = whole(headers, JSON_BYTES)

    def decode(body: bytes, spec: ModelSpec) -> tuple[InferRequest, Encode]:
        request, asked = decode_request(body, json_bytes, spec, memory)
        return request, partial(_encode, asked)

    return Form(json_bytes, decode)


def _encode(asked: Asked, response: InferResponse) -> tuple[Headers, bytes]:
    json_bytes, body = encode_response(response, asked)
    if json_bytes is None:
        return [(b"content-type", JSON.encode())], body
    return [(b"content-type", BINARY.encode()), (JSON_BYTES, b"%d" % json_bytes)], body
