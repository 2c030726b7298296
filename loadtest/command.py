"""``narsil bench``: a closed-loop measurement of a running server, with what it ran on."""

import argparse
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import uvloop

from loadtest import clients, closed, workload

URLS = {
    "grpc": "grpc://127.0.0.1:50051",
    "http": "http://127.0.0.1:8000",
    "http-json": "http://127.0.0.1:8000",
    "http3": "https://localhost:8443",
}


def main(argv: Sequence[str]) -> int:
    """Measure and print one JSON object; exit code 1 if any request failed."""
    arguments = _arguments(argv)
    encoding: workload.Encoding = "json" if arguments.wire == "http-json" else "protobuf"
    shape = workload.read_shape(arguments.artifact)
    bodies = workload.make_bodies(
        shape, arguments.rows, arguments.requests, arguments.seed, encoding
    )
    result = uvloop.run(_run(arguments, bodies, encoding))
    report = {
        "loop": "closed",
        "wire": arguments.wire,
        "rows": arguments.rows,
        "concurrency": arguments.concurrency,
        "seconds": arguments.seconds,
        "seed": arguments.seed,
        "body_bytes": len(bodies[0]),
        **result.summary(arguments.rows),
        "machine": _machine(),
    }
    print(json.dumps(report))
    return 1 if result.errors else 0


async def _run(
    arguments: argparse.Namespace, bodies: Sequence[bytes], encoding: workload.Encoding
) -> closed.Result:
    url = arguments.url or URLS[arguments.wire]
    content_type = "application/json" if encoding == "json" else "application/x-protobuf"
    async with clients.connect(url, arguments.concurrency, content_type, arguments.ca) as senders:
        return await closed.run(senders, bodies, arguments.warmup, arguments.seconds)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="narsil bench", description="Measure a running server, closed loop.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    parser.add_argument("artifact", type=Path, help="artifact folder that is being served")
    parser.add_argument("--wire", choices=sorted(URLS), default="grpc")
    parser.add_argument("--url", help="where the server listens; by default the wire's usual port")
    parser.add_argument("--rows", type=int, default=100, help="samples a request")
    parser.add_argument("--concurrency", type=int, default=1, help="requests in flight")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to measure")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds before measuring")
    parser.add_argument("--requests", type=int, default=1000, help="distinct requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ca", type=Path, default=Path(".narsil/tls/certificate.pem"), help="for HTTP/3")
    return parser.parse_args(argv)


def _machine() -> dict[str, object]:
    return {
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "narsil": version("narsil"),
        "grpcio": version("grpcio"),
    }
