"""What a request over HTTP/3 costs the server, beside aioquic's own server around the same app.

    python -m loadtest.lab.http3 --rows 100 --in-flight 16

Both servers are up at once on the same processor and take turns within a round; the client has
another processor. ``cpu us`` is the server's processor time by its requests. Where the client is
at its limit only that figure compares the servers.
"""

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.drive import Plan
from loadtest.drive import run as drive
from loadtest.lab import stats
from loadtest.lab.http3_servers import SERVERS, SHAPE
from loadtest.lab.manifest import manifest
from loadtest.lab.tables import print_table
from loadtest.record import Outcome
from loadtest.wires.base import Target
from loadtest.wires.connect import connected
from loadtest.workload import make_bodies

DISTINCT_REQUESTS = 500
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROTOBUF = {"content-type": "application/x-protobuf"}


@dataclass(frozen=True, slots=True)
class Server:
    """One contestant: its process and where it listens."""

    pid: int
    target: Target

    def cpu_s(self) -> float:
        """Return the processor time of all its threads so far."""
        line = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        user, system = line.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / _TICKS_PER_S


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests a second, their p50 (ms), and server and client CPU a request (us)."""

    rate: float
    p50_ms: float
    server_us: float
    client_us: float


@contextlib.contextmanager
def serving(name: str, folder: Path) -> Iterator[Server]:
    """Run the contestant called ``name`` in a process of its own."""
    command = [sys.executable, "-m", "loadtest.lab.http3_servers", name, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            ca = str(folder / "certificate.pem")
            yield Server(process.pid, Target("localhost", port, "/v1/predict", _PROTOBUF, ca))
        finally:
            process.terminate()


def measure(server: Server, plan: Plan, connections: int) -> Cost:
    """Carry out ``plan`` once. Raises SystemExit for a failed request."""
    with connected("https", server.target, connections) as wires:
        before_s = server.cpu_s()
        outcome: Outcome = drive(wires, plan, time.perf_counter())
        spent_s = server.cpu_s() - before_s
    if outcome.errors:
        raise SystemExit(f"loadtest.lab.http3: {outcome.failures}")
    return Cost(
        outcome.answered / outcome.elapsed_s,
        outcome.response.percentile(50) * 1e3,
        spent_s / outcome.answered * 1e6,
        outcome.cpu_s / outcome.answered * 1e6,
    )


def table(
    rows: int, in_flight: int, rounds: Mapping[str, Sequence[Cost]]
) -> list[dict[str, float | str]]:
    """Return one line a contestant: medians, and the medians of the ratios to ``plain``."""
    lines: list[dict[str, float | str]] = []
    base = rounds["plain"]
    for name, costs in rounds.items():
        lines.append(
            {
                "rows": str(rows),
                "in flight": str(in_flight),
                "server": name,
                "requests/s": stats.median([cost.rate for cost in costs]),
                "p50 ms": stats.median([cost.p50_ms for cost in costs]),
                "cpu us": stats.median([cost.server_us for cost in costs]),
                "client us": stats.median([cost.client_us for cost in costs]),
                "x rate": stats.median_ratio([c.rate for c in costs], [c.rate for c in base]),
                "x cpu": stats.median_ratio(
                    [c.server_us for c in base], [c.server_us for c in costs]
                ),
            }
        )
    return lines


def run(arguments: argparse.Namespace) -> list[dict[str, float | str]]:
    """Measure every contestant at every size and number in flight."""
    cpus = sorted(os.sched_getaffinity(0))
    lines: list[dict[str, float | str]] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.sched_setaffinity(0, cpus[:1])  # inherited by the servers
        servers = {name: stack.enter_context(serving(name, folder)) for name in SERVERS}
        os.sched_setaffinity(0, cpus[1:] or cpus)
        for rows, in_flight in itertools.product(arguments.rows, arguments.in_flight):
            bodies = make_bodies(SHAPE, rows, DISTINCT_REQUESTS, arguments.seed, "protobuf")
            plan = Plan(bodies, arguments.warmup, arguments.seconds, in_flight=in_flight)
            rounds: dict[str, list[Cost]] = {name: [] for name in servers}
            for _ in range(arguments.rounds):
                for name, server in servers.items():
                    rounds[name].append(measure(server, plan, arguments.connections))
            lines += table(rows, in_flight, rounds)
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the manifest and the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[1, 100])
    add("--in-flight", type=int, nargs="+", default=[16])
    add("--connections", type=int, default=1)
    add("--seconds", type=float, default=1.5, help="each measurement")
    add("--warmup", type=float, default=0.0, help="seconds before each")
    add("--rounds", type=int, default=5)
    add("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    print(json.dumps(manifest(arguments)))
    print_table(run(arguments))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
