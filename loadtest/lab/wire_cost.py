"""What a request costs the server, beside the least that the libraries below ours can do.

    python -m loadtest.lab.wire_cost http3 --rows 1 100
    python -m loadtest.lab.wire_cost http
    python -m loadtest.lab.wire_cost http-json

All servers (``wire_servers``) are up at once on the same processor and take turns within a round;
the client has another processor. ``cpu us`` is the server's processor time by its requests, and the
last columns are the medians of each round's ratio to the first server. Where the machine is shared
or the client at its limit only the processor time compares them.
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
from loadtest.lab.manifest import manifest
from loadtest.lab.tables import print_table
from loadtest.lab.wire_servers import SHAPE
from loadtest.record import Outcome
from loadtest.wires.base import Target
from loadtest.wires.connect import connected
from loadtest.wires.kinds import KINDS, Kind, target
from loadtest.workload import make_bodies

DISTINCT_REQUESTS = 500
_HTTP_SERVERS = ("http-bare", "http-least", "http")
_TLS = "-tls"
# What is compared on which wire of narsil bench: the first server is what others are compared with.
SERVERS = {
    "http3": ("http3", ("http3-plain", "http3")),
    "http": ("http", _HTTP_SERVERS),
    "http-json": ("http-json", _HTTP_SERVERS),
    "http-tls": ("http", ("http", "http-tls")),
    "grpc-tls": ("grpc", ("grpc", "grpc-tls")),
}


# Whether a contestant runs over what was compiled; both: once so, once so.
_OVER = {"none": (False,), "all": (True,), "both": (False, True)}


@dataclass(frozen=True, slots=True)
class Server:
    """One contestant: its process and where it listens."""

    pid: int
    target: Target

    def cpu_s(self) -> float:
        """Return the processor time of all its threads so far."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")  # ns; stat has ticks of 10 ms
        return sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests a second, their p50 (ms), and server and client CPU a request (us)."""

    rate: float
    p50_ms: float
    server_us: float
    client_us: float


@contextlib.contextmanager
def serving(name: str, kind: Kind, folder: Path, compiled: bool = False) -> Iterator[Server]:
    """Run the contestant called ``name``, to be asked as ``kind`` says, in a process of its own.

    Over what ``narsil compile`` has made, if ``compiled``.
    """
    over = ["-m", "app.compiled.run"] if compiled else ["-m"]
    command = [sys.executable, *over, "loadtest.lab.wire_servers", name, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            scheme = kind.schemes[-1] if name.endswith(_TLS) else kind.scheme
            host = "localhost" if scheme == "https" else "127.0.0.1"
            url = f"{scheme}://{host}:{port}"
            yield Server(process.pid, target(kind, url, str(folder / "certificate.pem")))
        finally:
            process.terminate()


def measure(scheme: str, server: Server, plan: Plan) -> Cost:
    """Carry out ``plan`` once. Raises SystemExit for a failed request."""
    connections = 1 if scheme == "https" else plan.in_flight
    with connected(scheme, server.target, connections) as wires:
        before_s = server.cpu_s()
        outcome: Outcome = drive(wires, plan, time.perf_counter())
        spent_s = server.cpu_s() - before_s
    if outcome.errors:
        raise SystemExit(f"loadtest.lab.wire_cost: {outcome.failures}")
    return Cost(
        outcome.answered / outcome.elapsed_s,
        outcome.response.percentile(50) * 1e3,
        spent_s / outcome.answered * 1e6,
        outcome.cpu_s / outcome.answered * 1e6,
    )


def table(
    rows: int, in_flight: int, rounds: Mapping[str, Sequence[Cost]]
) -> list[dict[str, float | str]]:
    """Return one line a contestant: medians, and the medians of the ratios to the first one."""
    lines: list[dict[str, float | str]] = []
    base = next(iter(rounds.values()))
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
                    [c.server_us for c in costs], [c.server_us for c in base]
                ),
            }
        )
    return lines


def beyond(rounds: Mapping[str, Sequence[Cost]]) -> dict[str, list[float]]:
    """Return what HTTP costs us in each round, interpreted and compiled, in us of processor time.

    That is what ours costs without what the least one costs above the bare one: decoding,
    inference and encoding.
    """
    found = {}
    for over in ("", " compiled"):
        sides = [rounds.get(f"{name}{over}", ()) for name in _HTTP_SERVERS]
        found[f"http{over}"] = [
            ours.server_us - (least.server_us - bare.server_us)
            for bare, least, ours in zip(*sides, strict=False)
        ]
    return {name: values for name, values in found.items() if values}


def run(arguments: argparse.Namespace) -> list[dict[str, float | str]]:
    """Measure every contestant at every size and number in flight."""
    cpus = sorted(os.sched_getaffinity(0))
    wire, names = SERVERS[arguments.what]
    kind = KINDS[wire]
    lines: list[dict[str, float | str]] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.sched_setaffinity(0, cpus[:1])  # inherited by the servers
        servers = {
            f"{name}{' compiled' * compiled}": stack.enter_context(
                serving(name, kind, folder, compiled)
            )
            for name in names
            for compiled in _OVER[arguments.compiled]
        }
        os.sched_setaffinity(0, cpus[1:] or cpus)
        for rows, in_flight in itertools.product(arguments.rows, arguments.in_flight):
            bodies = make_bodies(SHAPE, rows, DISTINCT_REQUESTS, arguments.seed, kind.encoding)
            plan = Plan(bodies, arguments.warmup, arguments.seconds, in_flight=in_flight)
            rounds: dict[str, list[Cost]] = {name: [] for name in servers}
            for _ in range(arguments.rounds):
                for name, server in servers.items():
                    rounds[name].append(measure(kind.scheme, server, plan))
            for name, values in beyond(rounds).items():
                print(
                    f"{rows} rows, {name}: all but decoding, inference and encoding costs"
                    f" {stats.median(values):.0f} us ({min(values):.0f} - {max(values):.0f})"
                )
            lines += table(rows, in_flight, rounds)
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the manifest and the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("what", choices=SERVERS)
    add("--rows", type=int, nargs="+", default=[1, 100])
    add("--in-flight", type=int, nargs="+", default=[16])
    add("--seconds", type=float, default=1.5, help="each measurement")
    add("--warmup", type=float, default=0.0, help="seconds before each")
    add("--rounds", type=int, default=5)
    add("--seed", type=int, default=0)
    add("--compiled", choices=_OVER, default="none", help="over what narsil compile has made")
    arguments = parser.parse_args(argv)
    print(json.dumps(manifest(arguments)))
    print_table(run(arguments))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
