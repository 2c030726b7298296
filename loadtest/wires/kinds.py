"""The wires by name: protocol, usual address, path and encoding."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from loadtest.encodings import Encoding
from loadtest.oip_http import HEAD_BYTES
from loadtest.wires.base import Target
from transports.credential import bearer


@dataclass(frozen=True, slots=True)
class Kind:
    """One wire; ``path`` is that of the only model served, or has ``{model}`` in it."""

    url: str
    path: str
    encoding: Encoding
    content_type: str = ""

    @property
    def scheme(self) -> str:
        """Return the protocol."""
        return urlsplit(self.url).scheme

    @property
    def schemes(self) -> tuple[str, ...]:
        """Return what URLs may begin with; what comes second is in TLS, as HTTP/3 always is."""
        return (self.scheme,) if self.scheme == "https" else (self.scheme, f"{self.scheme}s")

    @property
    def names_model(self) -> bool:
        """Whether the path has to name the model."""
        return "{model}" in self.path


_GRPC, _HTTP, _HTTP3 = "grpc://127.0.0.1:50051", "http://127.0.0.1:8000", "https://localhost:8443"
_JSON, _PROTOBUF = "application/json", "application/x-protobuf"
_BYTES = "application/octet-stream"
_PREDICT = "/v1/predict"
_INFER = "/v2/models/{model}/infer"
_OIP = "/inference.GRPCInferenceService/ModelInfer"
KINDS: Mapping[str, Kind] = {
    "grpc": Kind(_GRPC, "/predictor.Predictor/Predict", "protobuf"),
    "oip-grpc": Kind(_GRPC, _OIP, "oip"),
    "http": Kind(_HTTP, _PREDICT, "protobuf", _PROTOBUF),
    "http-json": Kind(_HTTP, _PREDICT, "json", _JSON),
    "oip-http": Kind(_HTTP, _INFER, "oip-binary", _BYTES),
    "oip-http-json": Kind(_HTTP, _INFER, "oip-json", _JSON),
    "http3": Kind(_HTTP3, _PREDICT, "protobuf", _PROTOBUF),
    "http3-json": Kind(_HTTP3, _PREDICT, "json", _JSON),
    "oip-http3": Kind(_HTTP3, _INFER, "oip-binary", _BYTES),
    "oip-http3-json": Kind(_HTTP3, _INFER, "oip-json", _JSON),
}


def target(
    kind: Kind,
    url: str,
    ca: str,
    timeout_ms: float = math.inf,
    model: str = "",
    api_key: str = "",
) -> Target:
    """Return where to send; with ``timeout_ms`` each request says its deadline.

    ``model`` is whom to ask, "" for the only one served. The Open Inference Protocol names it in
    the body, or in the path. ``api_key`` is sent with each request, "" for none.
    """
    place = urlsplit(url)
    headers = {"content-type": kind.content_type} if kind.content_type else {}
    headers |= bearer(api_key)
    if math.isfinite(timeout_ms):
        if kind.scheme == "grpc":
            headers["grpc-timeout"] = f"{round(timeout_ms * 1e3)}u"
        else:
            headers["x-request-timeout-ms"] = f"{timeout_ms:g}"
    if kind.encoding == "oip-binary":
        headers["inference-header-content-length"] = str(HEAD_BYTES)
    path = kind.path
    if kind.names_model:
        path = kind.path.format(model=quote(model, safe=""))
    elif model and kind.path == _PREDICT:
        path = f"/v1/models/{quote(model, safe='')}/predict"
    elif model and kind.encoding != "oip":
        headers["narsil-model"] = model
    return Target(
        place.hostname or "localhost", place.port or 0, path, headers, ca,
        tls=place.scheme in kind.schemes[1:],
    )  # fmt: skip
