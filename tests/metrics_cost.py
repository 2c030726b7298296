"""What the metrics cost of all that a served request costs: ``python -m tests.metrics_cost``.

One server process with the real gRPC transport and ``native_dlrm`` (``--artifact``; ``fake`` for a
model that takes no time) counts in one slice and not in the next, so that everything but the
observer is the same; CPU is the process's own, by the requests answered. The client is another
process. Each line is the median over pairs of slices, with the quartiles of the ratio.

A machine with other work to do spreads that ratio over more than what is looked for. So the last
column is taken from inside: the time between the begin and the end of every call of the observer,
less that of the same calls of one that does nothing, and the counting that is put off.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.observe import PrometheusObserver
from app.watching import Watching, WatchOptions
from backends.fake import FakeBackend, FakeOptions
from backends.native_dlrm.backend import NativeDlrmBackend
from backends.native_dlrm.options import NativeDlrmOptions
from loadtest.drive import Plan
from loadtest.drive import run as drive
from loadtest.lab import setting
from loadtest.lab.manifest import manifest
from loadtest.lab.wire_servers import DENSE, SHAPE, SPARSE, TABLE_ROWS
from loadtest.wires.connect import connected
from loadtest.wires.kinds import KINDS, target
from loadtest.workload import make_bodies, read_shape
from scheduler.backend import Backend
from scheduler.following import Following
from scheduler.observer import Answered, Computed, Observer
from scheduler.types import ModelSpec, Trace
from transports.grpc.options import GrpcOptions
from transports.grpc.server import GrpcTransport

FAKE = "fake"
# No call of an observer takes so long: another process had the processor meanwhile.
INTERRUPTED_NS = 50_000


def backend_of(artifact: str) -> Backend:
    """Return what computes."""
    if artifact != FAKE:
        return NativeDlrmBackend(NativeDlrmOptions(artifact, lanes=1))
    return FakeBackend(
        FakeOptions(
            dense_features=DENSE,
            sparse_features=SPARSE,
            table_rows=TABLE_ROWS,
            remembered_batches=0,
        )
    )


class Switch(Following):
    """Lead to the metrics or to nobody."""

    def turn(self, following: Observer) -> None:
        """Lead to ``following``."""
        self._following = following


class Timed(Following):
    """Time what is called of ``following`` for every request; ``ns`` is the sum."""

    def __init__(self, following: Observer) -> None:
        super().__init__(following)
        self.ns = 0

    def traced(self, traceparent: str, tracestate: str, began_s: float) -> Trace | None:
        """Time it."""
        begin_ns = time.perf_counter_ns()
        trace = self._following.traced(traceparent, tracestate, began_s)
        self._add(begin_ns)
        return trace

    def answered(self, record: Answered) -> None:
        """Time it."""
        begin_ns = time.perf_counter_ns()
        self._following.answered(record)
        self._add(begin_ns)

    def queued(self, spec: ModelSpec, rows: int, requests: int, batches: int) -> None:
        """Time it."""
        begin_ns = time.perf_counter_ns()
        self._following.queued(spec, rows, requests, batches)
        self._add(begin_ns)

    def computed(self, record: Computed) -> None:
        """Time it."""
        begin_ns = time.perf_counter_ns()
        self._following.computed(record)
        self._add(begin_ns)

    def settle(self, watching: PrometheusObserver) -> None:
        """Count what is not counted yet, on the clock of the processor."""
        begin_ns = time.thread_time_ns()
        watching.settle()
        self.ns += time.thread_time_ns() - begin_ns

    def _add(self, begin_ns: int) -> None:
        took_ns = time.perf_counter_ns() - begin_ns
        self.ns += took_ns if took_ns < INTERRUPTED_NS else 0


async def serve(artifact: str) -> None:
    """Print the port; then for each line on stdin the CPU and the time inside so far."""
    watching = Watching(WatchOptions()).prometheus
    inside = {"inside": Timed(watching), "outside": Timed(Observer())}
    choices = {"on": watching, "off": Observer(), **inside}
    switch = Switch(watching)
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line.strip())
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    async with setting.serving(backend_of(artifact), observer=switch) as engine:
        watching.serving(engine.specs())
        transport = GrpcTransport(GrpcOptions(port=0))
        (url,) = await transport.start(engine)
        watch = asyncio.create_task(watching.watch_loop())
        setting.settle_memory()
        print(url.rpartition(":")[2], flush=True)
        while line := await lines.get():
            # What a slice leaves to be counted is its own cost.
            inside["inside"].settle(watching)
            switch.turn(choices[line])
            own_ns = (each.ns for each in inside.values())
            print(time.process_time_ns(), *own_ns, flush=True)
        watch.cancel()
        await transport.stop(0.0)


@contextlib.contextmanager
def served(artifact: str) -> Iterator[subprocess.Popen[str]]:
    """Run the server."""
    command = [sys.executable, "-m", "tests.metrics_cost", "--serve", "--artifact", artifact]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def told(process: subprocess.Popen[str], line: str) -> list[int]:
    """Tell the server ``line``; return its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    if line:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    return [int(number) for number in process.stdout.readline().split()]


def measure(process: subprocess.Popen[str], port: int, plan: Plan, pairs: int) -> str:
    """Return one line of the table."""
    address = target(KINDS["grpc"], f"grpc://127.0.0.1:{port}", "")

    def cost_us(which: str, at: int) -> float:
        with connected("grpc", address, 1) as wires:
            before_ns = told(process, which)[at]
            outcome = drive(wires, plan, time.perf_counter())
            return (told(process, which)[at] - before_ns) / 1e3 / outcome.answered

    ways = {"on": 0, "off": 0, "inside": 1, "outside": 2}
    costs: dict[str, list[float]] = {which: [] for which in ways}
    for number in range(pairs + 1):
        for which in ways if number % 2 else reversed(ways):
            cost = cost_us(which, ways[which])
            if number:  # the first round warms up
                costs[which].append(cost)
    ratios = [on / off for on, off in zip(costs["on"], costs["off"], strict=True)]
    low, middle, high = (100 * each - 100 for each in statistics.quantiles(ratios, n=4))
    on_us, off_us, inside_us, outside_us = map(statistics.median, costs.values())
    inside_us -= outside_us
    return (
        f"{on_us:7.1f} us, without {off_us:7.1f}: {middle:+5.2f} % ({low:+.1f} to {high:+.1f}); "
        f"inside {inside_us:4.2f} us, {100 * inside_us / off_us:.2f} %"
    )


def main(argv: Sequence[str]) -> None:
    """Print a line for each size and number in flight."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--artifact", default="artifacts/reference")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.25)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.serve:
        setting.run(serve(arguments.artifact))
        return
    print(json.dumps(manifest(arguments)), f"load {os.getloadavg()[0]:.1f}")
    fake = arguments.artifact == FAKE
    shape = SHAPE if fake else read_shape(Path(arguments.artifact))
    with served(arguments.artifact) as process:
        (port,) = told(process, "")
        for rows, in_flight in itertools.product(arguments.rows, arguments.in_flight):
            bodies = make_bodies(shape, rows, 200, 0, KINDS["grpc"].encoding)
            plan = Plan(bodies, 0.0, arguments.seconds, in_flight=in_flight)
            line = measure(process, port, plan, arguments.pairs)
            print(f"{rows:4} rows, {in_flight:3} in flight: {line}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
