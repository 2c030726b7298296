"""Send one predict request over one transport; errors become one sentence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import grpc.aio
import httpx

from app.targets import Target, TargetError, whom_to_trust
from transports.codecs.problem_json import problem_detail
from transports.http3.client import Http3Client, Http3Error, UntrustedError

JSON, PROTOBUF = "application/json", "application/x-protobuf"


# Of httpx, those that say nothing.
_NAMELESS: Mapping[type[Exception], str] = {
    httpx.ReadError: "the connection was cut before an answer came",
    httpx.WriteError: "the connection was cut while the request was sent",
    httpx.ReadTimeout: "no answer came in time",
    httpx.ConnectTimeout: "no connection came about in time",
}


class PredictError(Exception):
    """Say why no scores came."""


class UnansweredError(PredictError):
    """Say why nothing answered at an HTTP address."""


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


async def over_http(target: Target, model: str, body: Body) -> Body:
    """POST ``body`` over HTTP/1.1. Raises PredictError."""
    try:
        async with target.http_client() as client:
            answer = await client.post(
                target.base + predict_path(model),
                content=body.content,
                headers={**body.headers, **target.headers},
            )
    except (httpx.HTTPError, TargetError) as error:
        raise _unanswered(target, error) from error
    return _checked(target, answer.status_code, answer.headers, answer.content)


async def get(target: Target, path: str) -> Body:
    """GET ``path`` over HTTP/1.1. Raises PredictError."""
    try:
        async with target.http_client() as client:
            answer = await client.get(target.base + path, headers=target.headers)
    except (httpx.HTTPError, TargetError) as error:
        raise _unanswered(target, error) from error
    return _checked(target, answer.status_code, answer.headers, answer.content)


async def over_http3(target: Target, model: str, body: Body) -> Body:
    """POST ``body`` over HTTP/3. Raises PredictError."""
    url = httpx.URL(target.url)
    try:
        async with Http3Client.connect(url.host, url.port or 443, target.ca) as client:
            headers = {**body.headers, **target.headers}
            answer = await client.post(predict_path(model), body.content, headers)
    except (OSError, Http3Error) as error:
        raise _unanswered(target, error) from error
    return _checked(target, answer.status, answer.headers, answer.body)


async def over_grpc(target: Target, model: str, body: Body) -> Body:
    """Call predictor.Predictor/Predict. Raises PredictError."""
    named = (("narsil-model", model),) if model else ()
    metadata = (*body.metadata, *named, *target.headers.items())
    try:
        async with target.grpc_channel() as channel:
            call = channel.unary_unary("/predictor.Predictor/Predict")
            answer = await call(body.content, metadata=metadata, timeout=body.timeout_s)
            return Body(answer, PROTOBUF)
    except grpc.aio.AioRpcError as error:
        details = error.details() or ""
        unavailable = error.code() is grpc.StatusCode.UNAVAILABLE and "refused" not in details
        hint = _in_tls(target, details, cut_off=unavailable)
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            hint = _without_key(target)
        raise PredictError(f"{error.code().name}: {details}{hint}") from error
    except TargetError as error:
        raise PredictError(str(error)) from error


def predict_path(model: str) -> str:
    """Return the HTTP path that asks ``model``; "" for the only one served."""
    return f"/v1/models/{model}/predict" if model else "/v1/predict"


def _unanswered(target: Target, error: Exception) -> PredictError:
    if isinstance(error, TargetError):
        return PredictError(str(error))
    said = str(error) or _NAMELESS.get(type(error), type(error).__name__)
    # In TLS 1.3 the server refuses a client without a certificate after the client's handshake.
    cut_off = isinstance(error, (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError))
    untrusted = isinstance(error, UntrustedError)
    hint = _in_tls(target, said, cut_off=cut_off, untrusted=untrusted)
    return UnansweredError(f"{target.url}: {said}{hint}")


def _in_tls(target: Target, said: str, *, cut_off: bool, untrusted: bool = False) -> str:
    """Return a hint for who trusts another certificate, or showed none and was cut off, else ""."""
    if not target.url.startswith(("https:", "grpcs:")):
        return ""
    if untrusted or ("CERTIFICATE_VERIFY_FAILED" in said and "mismatch" not in said):
        return f"; {whom_to_trust(target.ca)}"
    if not target.certificate and (cut_off or "CERTIFICATE_REQUIRED" in said):
        return "; the server may ask for a certificate (--certificate)"
    return ""


def _without_key(target: Target) -> str:
    """Return a hint for a client that sent no API key to a server that asks for one, else ""."""
    return "" if target.api_key else " (--api-key-file FILE)"


def _checked(target: Target, status: int, headers: Mapping[str, str], content: bytes) -> Body:
    if status != 200:
        hint = _without_key(target) if status == 401 else ""
        raise PredictError(f"{status}: {problem_detail(content)}{hint}")
    return Body(content, headers.get("content-type", ""))
