"""Tensors in shared memory beside the same tensors in the message: what a request costs.

    python -m loadtest.lab.shared_memory

One server on one processor serves HTTP and gRPC, the client has another. The forms take turns
within a round; the ratio is to the same transport with the tensors in the message. Requests are
made before: shared memory is filled once, as the messages are, so that neither side pays for that
here. The answers come back the way the tensors went. One id a feature, scores of a fake model.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.shared_memory import SharedMemory

from backends.fake import FakeBackend, FakeOptions
from loadtest.drive import Plan
from loadtest.lab import setting
from loadtest.lab.manifest import manifest
from loadtest.lab.shared_bodies import REGION_NAME, Form, forms
from loadtest.lab.tables import print_table
from loadtest.lab.wire_cost import Cost, Server, measure, table
from loadtest.lab.wire_servers import DENSE, SPARSE, TABLE_ROWS
from loadtest.wires.base import Target
from scheduler.regions import Region
from transports.grpc.options import GrpcOptions
from transports.grpc.server import GrpcTransport
from transports.http.server import HttpOptions, HttpTransport
from transports.regions import SharedRegions

PREFIX = "narsil-lab-"
LARGEST_ROWS = 16_384


async def serve(key: str, size_bytes: int) -> None:
    """Serve until killed with the object ``key`` registered; print the ports of HTTP and gRPC."""
    options = FakeOptions(
        dense_features=DENSE, sparse_features=SPARSE, table_rows=TABLE_ROWS,
        max_batch_rows=LARGEST_ROWS, remembered_batches=0,
    )  # fmt: skip
    async with setting.serving(FakeBackend(options)) as engine:
        engine.regions = SharedRegions(PREFIX)
        engine.regions.register(Region(REGION_NAME, key, 0, size_bytes))
        urls = [
            *await HttpTransport(HttpOptions(port=0)).start(engine),
            *await GrpcTransport(GrpcOptions(port=0)).start(engine),
        ]
        setting.settle_memory()
        print(*(url.rpartition(":")[2] for url in urls), flush=True)
        await asyncio.Event().wait()


@contextlib.contextmanager
def serving(memory: SharedMemory) -> Iterator[tuple[int, dict[str, int]]]:
    """Run the server in a process of its own; yield its pid and the ports by protocol."""
    command = [sys.executable, "-m", "loadtest.lab.shared_memory",
               "--serve", memory.name, "--bytes", f"{memory.size}"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            http, grpc = map(int, process.stdout.readline().split())
            yield process.pid, {"http": http, "grpc": grpc}
        finally:
            process.terminate()


def run(arguments: argparse.Namespace) -> list[dict[str, float | str]]:
    """Measure every form at every size."""
    cpus = sorted(os.sched_getaffinity(0))
    size_bytes = max(map(rows_bytes, arguments.rows))
    memory = SharedMemory(f"{PREFIX}{os.getpid()}", create=True, size=size_bytes)
    lines: list[dict[str, float | str]] = []
    try:
        os.sched_setaffinity(0, cpus[:1])  # inherited by the server
        with serving(memory) as (pid, ports):
            os.sched_setaffinity(0, cpus[1:] or cpus)
            for rows in arguments.rows:
                lines += _measured(arguments, rows, forms(rows, requests_of(rows), _buffer(memory)),
                                   pid, ports)  # fmt: skip
    finally:
        memory.close()
        memory.unlink()
    return lines


def _buffer(memory: SharedMemory) -> memoryview:
    assert memory.buf is not None  # until it is closed
    return memory.buf


def requests_of(rows: int) -> int:
    """Return how many distinct requests there are of a size."""
    return 200 if rows < LARGEST_ROWS // 4 else 8


def rows_bytes(rows: int) -> int:
    """Return the bytes of all requests of a size and of their answers."""
    return requests_of(rows) * rows * (4 * DENSE + 8 * SPARSE + 4)


def _measured(
    arguments: argparse.Namespace,
    rows: int,
    ways: Mapping[str, Form],
    pid: int,
    ports: Mapping[str, int],
) -> list[dict[str, float | str]]:
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, form in ways.items():
            plan = Plan(form.bodies, arguments.warmup, arguments.seconds, in_flight=1)
            target = Target("127.0.0.1", ports[form.scheme], form.path, form.headers)
            costs[name].append(measure(form.scheme, Server(pid, target), plan))
    by_wire = itertools.groupby(ways, lambda name: ways[name].scheme)
    return [
        line
        for _, names in by_wire
        for line in table(rows, 1, {name: costs[name] for name in names})
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the manifest and the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[1, 100, 10_000])
    add("--seconds", type=float, default=1.0, help="each measurement")
    add("--warmup", type=float, default=0.1, help="seconds before each")
    add("--rounds", type=int, default=5)
    add("--serve", help="be the server, with this object")
    add("--bytes", type=int, default=0, help="of the object")
    arguments = parser.parse_args(argv)
    if arguments.serve:
        setting.run(serve(arguments.serve, arguments.bytes))
        return 0
    began_s = time.perf_counter()
    about = manifest(arguments)
    lines = run(arguments)
    print(json.dumps({**about, "took_s": round(time.perf_counter() - began_s, 1)}))
    print_table(lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
