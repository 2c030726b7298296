"""``python -m loadtest.bars ARTIFACT``: the promises, measured beside the C++ yardstick.

Both servers run the same artifact, one thread a forward, pinned to the same processor; the client
has the other ones. Within a round they take turns, and a figure is the median of the rounds'
ratios: a slow spell of the machine hits both alike. Exit code 1 if a bar is not met.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from loadtest import grpc_wire, workload
from loadtest.closed import Result
from loadtest.command import machine
from loadtest.cpp_reference.serve import YardstickError, serving
from loadtest.lab.tables import print_table

DISTINCT_REQUESTS = 2000
_ADDRESS = re.compile(r"grpc://([\d.]+):(\d+)")
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise: ours by the yardstick's, at most or at least ``limit``."""

    figure: Literal["p50", "rate"]
    in_flight: int
    rows: int
    limit: float

    def met(self, ratio: float) -> bool:
        """Return whether ``ratio`` keeps it."""
        return ratio <= self.limit if self.figure == "p50" else ratio >= self.limit

    def of(self, result: Result) -> float:
        """Return the figure: the median latency in seconds, or answers a second."""
        if result.errors:
            raise YardstickError(str(result.failures))
        latencies_s = result.latencies_s
        if self.figure == "p50":
            return float(np.median(latencies_s))
        return len(latencies_s) / result.elapsed_s


BARS = (
    Bar("p50", 1, 1, 0.70),
    Bar("p50", 1, 10, 0.75),
    Bar("p50", 1, 100, 0.80),
    Bar("rate", 16, 1, 3.0),
    Bar("rate", 16, 10, 2.5),
    Bar("rate", 16, 100, 1.5),
    Bar("rate", 64, 1, 4.0),
)


@contextlib.contextmanager
def narsil(artifact: Path, flags: Sequence[str]) -> Iterator[int]:
    """Serve ``artifact`` in a process of its own; yield the gRPC port. Raises YardstickError."""
    script = Path(sys.executable).with_name("narsil")
    command = [str(script), "serve", str(artifact), "--transports=grpc"]
    command += ["--grpc-port=0", f"--grpc-host={_HOST}", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = next(filter(None, map(_ADDRESS.search, process.stdout)), None)
        try:
            if found is None:
                raise YardstickError("narsil serve ended before it was ready; see above")
            yield int(found[2])
        finally:
            process.terminate()


def measure(
    ports: dict[str, int], shape: workload.ModelShape, arguments: argparse.Namespace
) -> list[dict[str, float | str]]:
    """Return one line a bar."""
    lines: list[dict[str, float | str]] = []
    for bar in BARS:
        bodies = workload.make_bodies(shape, bar.rows, DISTINCT_REQUESTS, 0, "protobuf")
        load = grpc_wire.Load(bodies, bar.in_flight, arguments.warmup, arguments.seconds)
        rounds = [
            {name: bar.of(grpc_wire.run(_HOST, port, load)) for name, port in ports.items()}
            for _ in range(arguments.rounds)
        ]
        lines.append(_line(bar, rounds))
    return lines


def _line(bar: Bar, rounds: Sequence[dict[str, float]]) -> dict[str, float | str]:
    ratios = [each["narsil"] / each["c++"] for each in rounds]
    ratio = float(np.median(ratios))
    unit, scale = ("p50 ms", 1e3) if bar.figure == "p50" else ("samples/s", bar.rows)
    medians = {name: scale * float(np.median([r[name] for r in rounds])) for name in rounds[0]}
    return {
        "figure": unit,
        "in flight": str(bar.in_flight),
        "rows": str(bar.rows),
        **medians,
        "ratio": ratio,
        "spread": f"{min(ratios):.2f} - {max(ratios):.2f}",
        "to reach": f"{'<=' if bar.figure == 'p50' else '>='} {bar.limit}",
        "met": "yes" if bar.met(ratio) else "no",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and how many bars are met; 1 if one is not, 2 if none could be."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bars")
    shown = "(default: %(default)s)"
    add = parser.add_argument
    add("artifact", type=Path, help="artifact folder that both servers serve")
    add("--serve", default="", help="flags for narsil serve, in one word each")
    add("--rounds", type=int, default=5, help=shown)
    add("--seconds", type=float, default=2.0, help=f"each measurement {shown}")
    add("--warmup", type=float, default=0.5, help=f"seconds before each {shown}")
    arguments = parser.parse_args(argv)
    print(
        json.dumps({**machine(), "command": ["python -m loadtest.bars", *(argv or sys.argv[1:])]})
    )
    cpus = sorted(os.sched_getaffinity(0))
    try:
        shape = workload.read_shape(arguments.artifact)
        os.sched_setaffinity(0, cpus[:1])  # inherited by the servers
        with (
            serving(arguments.artifact) as url,
            narsil(arguments.artifact, arguments.serve.split()) as port,
        ):
            os.sched_setaffinity(0, cpus[1:] or cpus)
            lines = measure({"c++": int(url.rsplit(":")[-1]), "narsil": port}, shape, arguments)
    except (YardstickError, OSError) as error:
        print(f"loadtest.bars: {error}", file=sys.stderr)
        return 2
    print_table(lines)
    met = sum(line["met"] == "yes" for line in lines)
    print(f"{met} of {len(lines)} bars met")
    return 0 if met == len(lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
