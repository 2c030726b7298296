"""Send one predict request over one transport; errors become one sentence."""

import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio
import httpx

from transports.codecs.problem_json import problem_detail
from transports.http3.client import Http3Client, Http3Error

JSON, PROTOBUF = "application/json", "application/x-protobuf"


class PredictError(Exception):
    """Say why no scores came."""


@dataclass(frozen=True)
class Body:
    """A request or an answer as it goes over the wire.

    A request may have a ``priority``, 0 the first, and a ``timeout_ms``, infinite for none.
    """

    content: bytes
    content_type: str
    priority: int = 0
    timeout_ms: float = math.inf

    @property
    def headers(self) -> dict[str, str]:
        """What HTTP says of a request beside its body."""
        headers = {"content-type": self.content_type}
        if self.priority:
            headers["x-request-priority"] = str(self.priority)
        if self.timeout_ms < math.inf:
            headers["x-request-timeout-ms"] = f"{self.timeout_ms:f}"
        return headers

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What gRPC says of a request beside its message and deadline."""
        return (("priority", str(self.priority)),) if self.priority else ()

    @property
    def timeout_s(self) -> float | None:
        """The deadline of a gRPC call."""
        return self.timeout_ms / 1000 if self.timeout_ms < math.inf else None


async def over_http(url: str, model: str, body: Body, ca: Path) -> Body:
    """POST ``body`` over HTTP/1.1, for https:// trusting ``ca``. Raises PredictError."""
    try:
        async with _http_client(url, ca) as client:
            answer = await client.post(
                url + predict_path(model), content=body.content, headers=body.headers
            )
    except httpx.HTTPError as error:
        raise _unanswered(url, error) from error
    return _checked(answer.status_code, answer.headers, answer.content)


async def get(url: str, ca: Path) -> Body:
    """GET ``url`` over HTTP/1.1, for https:// trusting ``ca``. Raises PredictError."""
    try:
        async with _http_client(url, ca) as client:
            answer = await client.get(url)
    except httpx.HTTPError as error:
        raise _unanswered(url, error) from error
    return _checked(answer.status_code, answer.headers, answer.content)


async def over_http3(url: str, model: str, body: Body, ca: Path) -> Body:
    """POST ``body`` over HTTP/3, trusting ``ca``. Raises PredictError."""
    target = httpx.URL(url)
    try:
        async with Http3Client.connect(target.host, target.port or 443, ca) as client:
            answer = await client.post(predict_path(model), body.content, body.headers)
    except (OSError, Http3Error) as error:
        raise _unanswered(url, error) from error
    return _checked(answer.status, answer.headers, answer.body)


async def over_grpc(url: str, model: str, body: Body) -> Body:
    """Call predictor.Predictor/Predict. Raises PredictError."""
    metadata = (*body.metadata, *((("narsil-model", model),) if model else ()))
    try:
        async with grpc.aio.insecure_channel(urlsplit(url).netloc) as channel:
            call = channel.unary_unary("/predictor.Predictor/Predict")
            answer = await call(body.content, metadata=metadata, timeout=body.timeout_s)
            return Body(answer, PROTOBUF)
    except grpc.aio.AioRpcError as error:
        raise PredictError(f"{error.code().name}: {error.details()}") from error


def predict_path(model: str) -> str:
    """Return the HTTP path that asks ``model``; "" for the only one served."""
    return f"/v1/models/{model}/predict" if model else "/v1/predict"


def _http_client(url: str, ca: Path) -> httpx.AsyncClient:
    # Without TLS a context that trusts nobody will do; httpx's own reads a whole store first.
    trusted = _trust(ca) if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncClient(timeout=60, verify=trusted)


def _trust(ca: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        problem = "not found" if isinstance(error, FileNotFoundError) else "not readable as PEM"
        raise PredictError(f"CA file {ca} {problem}; pass --ca") from error


def _unanswered(url: str, error: Exception) -> PredictError:
    return PredictError(f"{url}: {str(error) or type(error).__name__}")


def _checked(status: int, headers: Mapping[str, str], content: bytes) -> Body:
    if status != 200:
        raise PredictError(f"{status}: {problem_detail(content)}")
    return Body(content, headers.get("content-type", ""))
