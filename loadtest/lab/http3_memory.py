"""Whether an HTTP/3 server's memory grows with the streams of one connection.

    python -m loadtest.lab.http3_memory --streams 100000

Closed loop on a single connection; the resident memory is sampled every second, and a straight line
is laid through the samples. Exit code 1 if it rises by more than 5 % over the run.
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from loadtest.drive import Plan
from loadtest.drive import run as drive
from loadtest.lab import stats
from loadtest.lab.manifest import manifest
from loadtest.lab.tables import print_table
from loadtest.lab.wire_cost import Server, serving
from loadtest.lab.wire_servers import SHAPE
from loadtest.wires.connect import connected
from loadtest.wires.kinds import KINDS
from loadtest.workload import make_bodies

MOST_GROWTH = 0.05
WARM_UP = 0.1  # share of the samples that are left out at first
SAMPLE_S = 1.0
_MIB = 1 << 20


def resident_mib(server: Server) -> float:
    """Return the resident memory of ``server``."""
    pages = Path(f"/proc/{server.pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize() / _MIB


def sample(arguments: argparse.Namespace) -> list[tuple[int, float]]:
    """Return streams so far and resident MiB, sample by sample. Raises SystemExit for a failure."""
    kind = KINDS["http3"]
    bodies = make_bodies(SHAPE, arguments.rows, 100, 0, kind.encoding)
    plan = Plan(bodies, 0.0, SAMPLE_S, in_flight=arguments.in_flight)
    samples: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as folder, serving("http3", kind, Path(folder)) as server:
        streams = 0
        with connected(kind.scheme, server.target, 1) as wires:
            while streams < arguments.streams:
                outcome = drive(wires, plan, time.perf_counter())
                if outcome.errors:
                    raise SystemExit(f"loadtest.lab.http3_memory: {outcome.failures}")
                streams += outcome.answered
                samples.append((streams, resident_mib(server)))
    return samples


def figures(samples: Sequence[tuple[int, float]]) -> dict[str, float | str]:
    """Return the line through ``samples``, and whether that counts as flat."""
    kept = samples[int(WARM_UP * len(samples)) :]
    streams = [float(count) for count, _ in kept]
    memory_mib = [memory for _, memory in kept]
    growth_mib = stats.theil_sen(streams, memory_mib) * (streams[-1] - streams[0])
    usual_mib = stats.median(memory_mib)
    return {
        "streams": str(samples[-1][0]),
        "first MiB": samples[0][1],
        "median MiB": usual_mib,
        "most MiB": max(memory_mib),
        "growth MiB": growth_mib,
        "flat": "yes" if growth_mib <= MOST_GROWTH * usual_mib else "no",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the manifest and the line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--streams", type=int, default=100_000)
    add("--rows", type=int, default=1)
    add("--in-flight", type=int, default=64)
    arguments = parser.parse_args(argv)
    print(json.dumps(manifest(arguments)))
    line = figures(sample(arguments))
    print_table([line])
    return 0 if line["flat"] == "yes" else 1


if __name__ == "__main__":
    raise SystemExit(main())
