"""``narsil predict``: send one request over any transport and print the scores and the time."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import numpy as np
from google.protobuf.message import DecodeError

from app import senders
from app.senders import JSON, PROTOBUF, Body, PredictError
from scheduler.errors import ServingError
from scheduler.types import Array, ModelSpec, TensorSpec
from transports.codecs import predict_json
from transports.codecs.predictor_client import decode_response, encode_request

URLS = {
    "http": "http://127.0.0.1:8000",
    "grpc": "grpc://127.0.0.1:50051",
    "http3": "https://localhost:8443",
}


def main(argv: Sequence[str]) -> int:
    """Send the request and print its scores; exit code 1 if the answer is an error."""
    arguments = _arguments(argv)
    try:
        scores, elapsed_s = asyncio.run(_predict(arguments))
    except PredictError as error:
        print(f"narsil predict: {error}", file=sys.stderr)
        return 1
    for name, values in scores.items():
        print(f"{name}: {' '.join(f'{value:.6f}' for value in np.ravel(values))}")
    print(f"{elapsed_s * 1e3:.2f} ms over {arguments.transport}", file=sys.stderr)
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="narsil predict",
        description="Send one request and print its scores.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("request", type=Path, help="JSON predict request, or .npz of its tensors")
    parser.add_argument("--transport", choices=sorted(URLS), default="http")
    parser.add_argument("--url", help="where the server listens; by default the usual port")
    parser.add_argument("--model", default="", help="model name; by default the only one")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds to wait")
    parser.add_argument(
        "--ca",
        type=Path,
        default=Path(".narsil/tls/certificate.pem"),
        help="certificate to trust, for HTTP/3",
    )
    parser.add_argument(
        "--describe",
        default=URLS["http"],
        help="HTTP address that tells the order of the features, which gRPC with a JSON file needs",
    )
    return parser.parse_args(argv)


async def _predict(arguments: argparse.Namespace) -> tuple[Mapping[str, Array], float]:
    body = await _body(arguments)
    url = arguments.url or URLS[arguments.transport]
    started_s = time.perf_counter()
    try:
        async with asyncio.timeout(arguments.timeout):
            answer = await _send(arguments, url, body)
    except TimeoutError as error:
        raise PredictError(f"no answer within {arguments.timeout:g} s") from error
    elapsed_s = time.perf_counter() - started_s
    return _scores(answer), elapsed_s


async def _send(arguments: argparse.Namespace, url: str, body: Body) -> Body:
    if arguments.transport == "grpc":
        return await senders.over_grpc(url, arguments.model, body)
    if arguments.transport == "http3":
        return await senders.over_http3(url, arguments.model, body, arguments.ca)
    return await senders.over_http(url, arguments.model, body)


async def _body(arguments: argparse.Namespace) -> Body:
    try:
        if arguments.request.suffix == ".npz":
            with np.load(arguments.request, allow_pickle=False) as tensors:
                inputs = {name: tensors[name] for name in tensors.files}
            return Body(_encode(inputs), PROTOBUF)
        content = arguments.request.read_bytes()
    except (OSError, ValueError, KeyError) as error:
        raise PredictError(f"{arguments.request}: {error}") from error
    if arguments.transport != "grpc":
        return Body(content, JSON)
    # predictor.proto names no features: ask the server for their order instead of guessing it.
    try:
        request = predict_json.decode_request(content, await _describe(arguments))
    except ServingError as error:
        raise PredictError(f"{arguments.request}: {error.detail}") from error
    return Body(_encode(request.inputs), PROTOBUF)


def _encode(inputs: Mapping[str, Array]) -> bytes:
    return encode_request(len(inputs["float_features"]), inputs)


async def _describe(arguments: argparse.Namespace) -> ModelSpec:
    path = f"/v1/models/{arguments.model}" if arguments.model else "/v1/models"
    try:
        async with httpx.AsyncClient(base_url=arguments.describe) as client:
            answer = (await client.get(path)).raise_for_status().json()
    except httpx.HTTPError as error:
        raise PredictError(f"--describe {arguments.describe}: {error}") from error
    model = answer if arguments.model else answer["models"][0]
    inputs = tuple(
        TensorSpec(
            tensor["name"],
            np.dtype(tensor["dtype"]),
            tuple(tensor["shape"]),
            tuple(tensor["labels"]),
        )
        for tensor in model["inputs"]
    )
    return ModelSpec(model["name"], model["version"], inputs, (), model["max_batch_rows"])


def _scores(answer: Body) -> Mapping[str, Array]:
    if answer.content_type == JSON:
        predictions = json.loads(answer.content)["predictions"]
        return {name: np.array(values, np.float32) for name, values in predictions.items()}
    try:
        return decode_response(answer.content)
    except DecodeError as error:
        raise PredictError(f"not a PredictionResponse: {error}") from error
