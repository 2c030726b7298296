"""``narsil predict``: send one request over any transport and print the scores and the time."""

import argparse
import asyncio
import dataclasses
import json
import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from google.protobuf.message import DecodeError

from app import senders
from app.senders import JSON, PROTOBUF, Body, PredictError, UnansweredError
from app.targets import CERTIFICATE, Target
from scheduler.errors import ServingError
from scheduler.types import Array, ModelSpec, TensorSpec
from transports.codecs import predict_json
from transports.codecs.predictor_client import decode_response, encode_request
from transports.credential import read_key

URLS = {
    "http": "http://127.0.0.1:8000",
    "grpc": "grpc://127.0.0.1:50051",
    "http3": "https://localhost:8443",
}
SCHEMES = {"http": ("http", "https"), "grpc": ("grpc", "grpcs"), "http3": ("https",)}
# Also reached over a Unix domain socket.
LOCAL = ("http", "grpc")


def main(argv: Sequence[str]) -> int:
    """Send the request and print its scores; exit code 1 if the answer is an error."""
    arguments = _arguments(argv)
    # aioquic also logs why a handshake failed; the exception says it once.
    logging.getLogger("quic").addHandler(logging.NullHandler())
    try:
        arguments.api_key = read_key(arguments.api_key_file)
        scores, elapsed_s = asyncio.run(_predict(arguments))
    except (PredictError, ValueError) as error:
        print(f"narsil predict: {error}", file=sys.stderr)
        return 1
    for name, values in scores.items():
        print(f"{name}: {' '.join(f'{value:.6f}' for value in np.ravel(values))}")
    took = f"{elapsed_s * 1e3:.2f} ms over {arguments.transport}, connecting included"
    print(took, file=sys.stderr)
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="narsil predict",
        description="Send one request and print its scores.",
    )
    shown = "(default: %(default)s)"
    add = parser.add_argument
    add("request", type=Path, help="JSON predict request, or .npz of its tensors")
    add("--transport", choices=sorted(URLS), default="http", help=f"how to send it {shown}")
    add("--url", help="where the server listens, if not at the usual port on this host")
    add("--model", default="", help="model name; not needed if one is served")
    add("--priority", type=int, default=0, help=f"class to be served in, 0 the first {shown}")
    add("--timeout-ms", type=float, default=math.inf, help="milliseconds the answer is worth it")
    add("--timeout", type=float, default=10.0, help=f"seconds to wait {shown}")
    add("--ca", type=Path, default=CERTIFICATE, help=f"certificate to trust, in TLS {shown}")
    add("--certificate", type=Path, help="certificate to show, where the server asks for one")
    add("--private-key", type=Path, help="its key; not needed if it is in the same file")
    add("--api-key-file", type=Path, help="file with the API key, where the server asks for one")
    add(
        "--describe",
        default=URLS["http"],
        help="HTTP address that tells the order of the features, which gRPC with a JSON file "
        f"needs {shown}",
    )
    arguments = parser.parse_args(argv)
    if arguments.priority < 0:
        parser.error(f"--priority must be 0 or more, got {arguments.priority}")
    if not arguments.timeout_ms > 0:
        parser.error(f"--timeout-ms must be above 0, got {arguments.timeout_ms:g}")
    arguments.url = (arguments.url or URLS[arguments.transport]).rstrip("/")
    _check_url(parser, arguments.url, f"--transport {arguments.transport}", arguments.transport)
    _check_url(parser, arguments.describe, "--describe", "http")
    return arguments


def _check_url(parser: argparse.ArgumentParser, url: str, flag: str, transport: str) -> None:
    try:
        target = urlsplit(url)
        if target.scheme in SCHEMES[transport] and target.hostname and target.port != 0:
            return
        if target.scheme == "unix" and transport in LOCAL:
            return
    except ValueError:
        pass
    forms = [f"{scheme}://HOST:PORT" for scheme in SCHEMES[transport]]
    expected = " or ".join([*forms, "unix:PATH"] if transport in LOCAL else forms)
    parser.error(f"{url}: {flag} expects {expected}")


async def _predict(arguments: argparse.Namespace) -> tuple[Mapping[str, Array], float]:
    try:
        async with asyncio.timeout(arguments.timeout):
            body = await _body(arguments)
    except TimeoutError as error:
        why = f"no answer within {arguments.timeout:g} s from --describe {arguments.describe}"
        raise PredictError(why) from error
    # A JSON file may have its own: the smaller timeout counts, and the file's priority first.
    body = dataclasses.replace(
        body,
        priority=body.priority or arguments.priority,
        timeout_ms=min(body.timeout_ms, arguments.timeout_ms),
    )
    started_s = time.perf_counter()
    try:
        async with asyncio.timeout(arguments.timeout):
            answer = await _send(arguments, body)
    except TimeoutError as error:
        raise PredictError(f"no answer within {arguments.timeout:g} s") from error
    elapsed_s = time.perf_counter() - started_s
    return _scores(answer), elapsed_s


async def _send(arguments: argparse.Namespace, body: Body) -> Body:
    send = {
        "grpc": senders.over_grpc, "http3": senders.over_http3, "http": senders.over_http
    }[arguments.transport]  # fmt: skip
    return await send(_target(arguments, arguments.url), arguments.model, body)


def _target(arguments: argparse.Namespace, url: str) -> Target:
    key = arguments.private_key or arguments.certificate
    return Target(url, arguments.ca, arguments.certificate, key, arguments.api_key)


async def _body(arguments: argparse.Namespace) -> Body:
    try:
        if arguments.request.suffix == ".npz":
            with np.load(arguments.request, allow_pickle=False) as tensors:
                inputs = {name: tensors[name] for name in tensors.files}
            return Body(_encode(inputs), PROTOBUF)
        content = arguments.request.read_bytes()
    except (OSError, ValueError, KeyError) as error:
        why = getattr(error, "strerror", None) or error
        raise PredictError(f"{arguments.request}: {why}") from error
    if arguments.transport != "grpc":
        return Body(content, JSON)
    # predictor.proto names no features: ask the server for their order instead of guessing it.
    try:
        request = predict_json.decode_request(content, await _describe(arguments))
    except ServingError as error:
        raise PredictError(f"{arguments.request}: {error.detail}") from error
    return Body(_encode(request.inputs), PROTOBUF, request.priority, request.timeout_s * 1e3)


def _encode(inputs: Mapping[str, Array]) -> bytes:
    return encode_request(len(inputs["float_features"]), inputs)


async def _describe(arguments: argparse.Namespace) -> ModelSpec:
    path = f"/v1/models/{arguments.model}" if arguments.model else "/v1/models"
    try:
        described = await senders.get(_target(arguments, arguments.describe), path)
    except UnansweredError as error:
        why = "the HTTP address that tells the order of the features, which gRPC needs"
        raise UnansweredError(f"{error}; --describe gives {why}") from error
    try:
        answer = json.loads(described.content)
        return _spec(answer if arguments.model else answer["models"][0])
    except (ValueError, LookupError, TypeError) as error:
        url = arguments.describe
        raise PredictError(f"--describe {url}: {path} describes no model of Narsil's") from error


def _spec(model: Mapping[str, Any]) -> ModelSpec:
    """Return what a description of a model says of its inputs."""
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
        try:
            predictions = json.loads(answer.content)["predictions"]
            return {name: np.array(values, np.float32) for name, values in predictions.items()}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise PredictError(f"the answer has no predictions: {answer.content[:64]!r}") from error
    try:
        return decode_response(answer.content)
    except DecodeError as error:
        raise PredictError(f"not a PredictionResponse: {error}") from error
