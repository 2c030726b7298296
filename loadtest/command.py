"""``narsil bench``: closed-loop measurements of a running server, with what they ran on."""

import argparse
import itertools
import json
import logging
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from loadtest import bare, clients, closed, workload
from scheduler.errors import LoadError

URLS = {
    "grpc": "grpc://127.0.0.1:50051",
    "http": "http://127.0.0.1:8000",
    "http-json": "http://127.0.0.1:8000",
    "http3": "https://localhost:8443",
}
BARE = "bare"
CERTIFICATE = Path(".narsil/tls/certificate.pem")
DISTINCT_REQUESTS = 1000


def main(argv: Sequence[str]) -> int:
    """Measure each combination and print one JSON object a line; exit code 1 if a request failed.

    Why requests fail is said on stderr. No connection ends the run.
    """
    arguments = _arguments(argv)
    # aioquic also logs why a handshake failed; the exception says it once.
    logging.getLogger("quic").addHandler(logging.NullHandler())
    try:
        return _run(arguments, argv, _shape(arguments.artifact))
    except (closed.NoServerError, LoadError) as error:
        print(f"narsil bench: {error}", file=sys.stderr)
        return 1


def _shape(artifact: Path) -> workload.ModelShape:
    try:
        return workload.read_shape(artifact)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise LoadError(f"{artifact} is not an artifact folder: {error}") from error


def _run(arguments: argparse.Namespace, argv: Sequence[str], shape: workload.ModelShape) -> int:
    print(json.dumps({"machine": machine(), "command": ["narsil", "bench", *argv]}))
    failed = False
    direct = bare.load(arguments.artifact, "torch_dlrm") if BARE in arguments.wire else None
    for wire, rows, concurrency in _combinations(arguments):
        if wire == BARE and direct is not None:
            result = bare.run(direct, shape, rows, DISTINCT_REQUESTS, arguments.seconds)
        else:
            result = _measure(arguments, shape, wire, rows, concurrency)
        labels = {"wire": wire, "rows": rows, "concurrency": concurrency}
        print(json.dumps({**labels, **result.summary(rows)}), flush=True)
        if result.errors:
            failed = True
            print(f"narsil bench: {result.failures}", file=sys.stderr)
    return 1 if failed else 0


def _combinations(arguments: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Repeat the whole round, so that a slow spell of the machine hits all combinations alike."""
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
    )
    shown = "(default: %(default)s)"
    add = parser.add_argument
    add("artifact", type=Path, help="artifact folder that is being served")
    wires = f"{', '.join(URLS)}, or {BARE}: no server"
    add("--wire", type=_wires, default="grpc", help=f"{wires} {shown}")
    add("--url", help="where the server listens, if not at the wire's usual port on this host")
    add("--rows", type=_numbers, default="100", help=f"samples a request {shown}")
    add("--concurrency", type=_numbers, default="1", help=f"requests in flight {shown}")
    add("--seconds", type=float, default=10.0, help=f"how long to measure each {shown}")
    add("--warmup", type=float, default=2.0, help=f"seconds before measuring {shown}")
    add("--repeats", type=int, default=1, help=f"rounds over all combinations {shown}")
    add("--seed", type=int, default=0, help=f"of the requests {shown}")
    add("--ca", type=Path, default=CERTIFICATE, help=f"to trust, for HTTP/3 {shown}")
    arguments = parser.parse_args(argv)
    for wire in arguments.wire:
        if arguments.url and wire != BARE and not _fits(arguments.url, wire):
            scheme = urlsplit(URLS[wire]).scheme
            parser.error(f"--url {arguments.url}: --wire {wire} expects {scheme}://HOST:PORT")
    return arguments


def _fits(url: str, wire: str) -> bool:
    # The scheme picks the protocol: another one would be measured under this wire's name.
    try:
        target = urlsplit(url)
        return target.scheme == urlsplit(URLS[wire]).scheme and None not in (
            target.hostname,
            target.port,
        )
    except ValueError:
        return False


def _wires(text: str) -> list[str]:
    wires = text.split(",")
    for wire in wires:
        if wire not in (*URLS, BARE):
            raise argparse.ArgumentTypeError(f"no wire {wire!r}")
    return wires


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def machine() -> dict[str, object]:
    """Return what a measurement ran on: machine, Python and library versions."""
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
