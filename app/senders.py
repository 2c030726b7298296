"""Send one predict request over one transport; errors become one sentence."""

from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import httpx

from transports.http3.client import Http3Client, Http3Error

JSON, PROTOBUF = "application/json", "application/x-protobuf"


class PredictError(Exception):
    """Say why no scores came."""


@dataclass(frozen=True)
class Body:
    """A request or an answer as it goes over the wire."""

    content: bytes
    content_type: str


async def over_http(url: str, model: str, body: Body) -> Body:
    """POST ``body`` over HTTP/1.1. Raises PredictError."""
    headers = {"content-type": body.content_type}
    try:
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(url + _path(model), content=body.content, headers=headers)
    except httpx.HTTPError as error:
        raise PredictError(f"{url}: {error!r}") from error
    return _checked(answer.status_code, answer.headers["content-type"], answer.content)


async def over_http3(url: str, model: str, body: Body, ca: Path) -> Body:
    """POST ``body`` over HTTP/3, trusting ``ca``. Raises PredictError."""
    headers = {"content-type": body.content_type}
    target = httpx.URL(url)
    try:
        async with Http3Client.connect(target.host, target.port or 443, ca) as client:
            answer = await client.post(_path(model), body.content, headers)
    except (OSError, Http3Error) as error:
        raise PredictError(f"{url}: {error!r}") from error
    return _checked(answer.status, answer.headers["content-type"], answer.body)


async def over_grpc(url: str, model: str, body: Body) -> Body:
    """Call predictor.Predictor/Predict. Raises PredictError."""
    metadata = (("narsil-model", model),) if model else ()
    try:
        async with grpc.aio.insecure_channel(url.removeprefix("grpc://")) as channel:
            call = channel.unary_unary("/predictor.Predictor/Predict")
            return Body(await call(body.content, metadata=metadata), PROTOBUF)
    except grpc.aio.AioRpcError as error:
        raise PredictError(f"{error.code().name}: {error.details()}") from error


def _path(model: str) -> str:
    return f"/v1/models/{model}/predict" if model else "/v1/predict"


def _checked(status: int, content_type: str, content: bytes) -> Body:
    if status != 200:
        raise PredictError(f"{status}: {content.decode(errors='replace')}")
    return Body(content, content_type)
