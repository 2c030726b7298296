"""``narsil bench``: closed-loop measurements of a running server, with what they ran on."""

import argparse
import itertools
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import uvloop

from loadtest import bare, clients, closed, workload

URLS = {
    "grpc": "grpc://127.0.0.1:50051",
    "http": "http://127.0.0.1:8000",
    "http-json": "http://127.0.0.1:8000",
    "http3": "https://localhost:8443",
}
BARE = "bare"
DISTINCT_REQUESTS = 1000


def main(argv: Sequence[str]) -> int:
    """Measure each combination and print one JSON object a line; exit code 1 if a request failed.

    Repeats go round all combinations, so that a slow spell of the machine hits all alike.
    """
    arguments = _arguments(argv)
    shape = workload.read_shape(arguments.artifact)
    print(json.dumps({"machine": _machine(), "command": ["narsil", "bench", *argv]}))
    failed = False
    direct = bare.load(arguments.artifact, "torch_dlrm") if BARE in arguments.wire else None
    for wire, rows, concurrency in _combinations(arguments):
        if wire == BARE and direct is not None:
            result = bare.run(direct, shape, rows, DISTINCT_REQUESTS, arguments.seconds)
        else:
            result = _measure(arguments, shape, wire, rows, concurrency)
        failed = failed or result.errors > 0
        labels = {"wire": wire, "rows": rows, "concurrency": concurrency}
        print(json.dumps({**labels, **result.summary(rows)}), flush=True)
    return 1 if failed else 0


def _combinations(arguments: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    for _ in range(arguments.repeats):
        for wire, rows, concurrency in itertools.product(
            arguments.wire, arguments.rows, arguments.concurrency
        ):
            if wire != BARE or concurrency == 1:
                yield wire, rows, concurrency


def _measure(
    arguments: argparse.Namespace,
    shape: workload.ModelShape,
    wire: str,
    rows: int,
    concurrency: int,
) -> closed.Result:
    encoding: workload.Encoding = "json" if wire == "http-json" else "protobuf"
    bodies = workload.make_bodies(shape, rows, DISTINCT_REQUESTS, arguments.seed, encoding)
    content_type = "application/json" if encoding == "json" else "application/x-protobuf"
    url = arguments.url or URLS[wire]

    async def run() -> closed.Result:
        async with clients.connect(url, concurrency, content_type, arguments.ca) as senders:
            return await closed.run(senders, bodies, arguments.warmup, arguments.seconds)

    return uvloop.run(run())


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="narsil bench",
        description="Measure a running server, closed loop. Lists are separated by commas.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    certificate = Path(".narsil/tls/certificate.pem")
    parser.add_argument("artifact", type=Path, help="artifact folder that is being served")
    parser.add_argument(
        "--wire", type=_wires, default="grpc", help=f"{', '.join(URLS)}, or {BARE}: no server"
    )
    parser.add_argument("--url", help="where the server listens; by default the wire's usual port")
    parser.add_argument("--rows", type=_numbers, default="100", help="samples a request")
    parser.add_argument("--concurrency", type=_numbers, default="1", help="requests in flight")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to measure each")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds before measuring")
    parser.add_argument("--repeats", type=int, default=1, help="rounds over all combinations")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    parser.add_argument("--ca", type=Path, default=certificate, help="to trust, for HTTP/3")
    return parser.parse_args(argv)


def _wires(text: str) -> list[str]:
    wires = text.split(",")
    for wire in wires:
        if wire not in (*URLS, BARE):
            raise argparse.ArgumentTypeError(f"no wire {wire!r}")
    return wires


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _machine() -> dict[str, object]:
    return {
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        **{name: version(name) for name in ("narsil", "grpcio", "uvicorn", "aioquic", "torch")},
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if "model name" in line), "unknown")
