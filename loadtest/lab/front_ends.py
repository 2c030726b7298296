"""Requests a second, and processor time a request, by the number of front ends.

    python -m loadtest.lab.front_ends artifacts/reference --json FILE

One ``narsil serve`` for each number of front ends, all there at once; closed loops take turns
within a round, so that a slow spell of the machine meets all. Processor time of a request, us:
``loop`` is the main thread of the process that has the model, ``engine`` all of that process, its
lanes included, ``front ends`` all of those together, ``generator`` this process. ``a core each`` is
derived, not measured: the requests a second at which the event loop, or the front ends, would be
busy all the time, had each of them a core, and lanes and generator as many as they need.
"""

import argparse
import contextlib
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest import workload
from loadtest.drive import Plan
from loadtest.drive import run as drive
from loadtest.lab import stats
from loadtest.lab.manifest import manifest
from loadtest.lab.tables import print_table
from loadtest.served import Served, serving
from loadtest.wires.connect import connected
from loadtest.wires.kinds import KINDS, target

_BODIES = 200
# Some for each front end, since the kernel spreads connections by their addresses.
_CONNECTIONS = 24


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked: a wire of ``narsil bench``, rows a request, how many front ends."""

    wire: str
    rows: int
    count: int


@dataclass(frozen=True, slots=True)
class Seen:
    """One closed loop: its rate, and processor seconds a request of whoever takes part."""

    requests_per_s: float
    loop_s: float
    engine_s: float
    front_ends_s: float
    generator_s: float


def thread_s(pid: int, thread: str) -> float:
    """Return the processor time that one thread of a process has taken; 0 if it has gone."""
    try:
        said = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return int(said.split()[0]) / 1e9


def cpu_s(pid: int) -> float:
    """Return the processor time that a process's threads have taken."""
    return sum([thread_s(pid, thread) for thread in os.listdir(f"/proc/{pid}/task")])


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(one) for one in listed.split()]


def measure(served: Served, wire: str, plan: Plan) -> Seen:
    """Carry out ``plan``. Raises NoServerError, and RuntimeError for a request that failed."""
    kind = KINDS[wire]
    url = served.urls["http3" if kind.scheme == "https" else kind.scheme]
    with connected(kind.scheme, target(kind, url, served.ca), _CONNECTIONS) as wires:
        before_s = _spent_s(served.pid)
        outcome = drive(wires, plan, time.perf_counter() + 0.01)
        after_s = _spent_s(served.pid)
    if outcome.errors:
        raise RuntimeError(f"{wire}: {outcome.failures}")
    count = outcome.answered
    loop_s, engine_s, front_ends_s = (
        (after - before) / count for after, before in zip(after_s, before_s, strict=True)
    )
    rate = count / outcome.elapsed_s
    return Seen(rate, loop_s, engine_s, front_ends_s, outcome.cpu_s / count)


def _spent_s(pid: int) -> tuple[float, float, float]:
    """Return what the event loop, all of its process, and all front ends have taken."""
    return thread_s(pid, str(pid)), cpu_s(pid), sum(map(cpu_s, children(pid)))


@contextlib.contextmanager
def servers(
    artifact: Path, counts: Sequence[int], flags: Sequence[str]
) -> Iterator[dict[int, Served]]:
    """Serve ``artifact`` once with each number of front ends."""
    with contextlib.ExitStack() as stack:
        yield {
            count: stack.enter_context(serving(artifact, [f"--frontends={count}", *flags]))
            for count in counts
        }


def run(arguments: argparse.Namespace) -> dict[Case, list[Seen]]:
    """Return what each case came to, once a round."""
    shape = workload.read_shape(arguments.artifact)
    bodies = {
        (wire, rows): workload.make_bodies(shape, rows, _BODIES, 0, KINDS[wire].encoding)
        for wire, rows in itertools.product(arguments.wires, arguments.rows)
    }
    found: dict[Case, list[Seen]] = {}
    with servers(arguments.artifact, arguments.frontends, arguments.serve.split()) as running:
        for number in range(arguments.rounds + 1):
            for (wire, rows), asked in bodies.items():
                # The first round warms up.
                plan = Plan(asked, 0.0, arguments.seconds if number else 0.3,
                            in_flight=arguments.in_flight)  # fmt: skip
                for count, served in running.items():
                    seen = measure(served, wire, plan)
                    found.setdefault(Case(wire, rows, count), []).extend([seen] if number else [])
    return found


def table(found: dict[Case, list[Seen]]) -> list[dict[str, float | str]]:
    """Return one line a case: medians over the rounds."""
    lines: list[dict[str, float | str]] = []
    for case, rounds in found.items():
        rates = [seen.requests_per_s for seen in rounds]
        loop_s, engine_s, front_ends_s, generator_s = (
            stats.median([getattr(seen, name) for seen in rounds])
            for name in ("loop_s", "engine_s", "front_ends_s", "generator_s")
        )
        lines.append({
            "wire": case.wire,
            "rows": case.rows,
            "N": case.count,
            "requests/s": stats.median(rates),
            "least to most": f"{min(rates):.0f} - {max(rates):.0f}",
            "loop us": loop_s * 1e6,
            "engine us": engine_s * 1e6,
            "front ends us": front_ends_s * 1e6,
            "generator us": generator_s * 1e6,
            "a core each": 1 / max(loop_s, front_ends_s / max(1, case.count)),
        })  # fmt: skip
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; print the manifest and the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("artifact", type=Path)
    add("--frontends", type=int, nargs="+", default=[0, 1, 2, 3])
    add("--wires", nargs="+", choices=KINDS, default=["http-json", "http3", "grpc"])
    add("--rows", type=int, nargs="+", default=[1, 100], help="of each request")
    add("--in-flight", type=int, default=32)
    add("--seconds", type=float, default=1.0, help="each measurement")
    add("--rounds", type=int, default=3, help="after one to warm up")
    add("--serve", default="", help="flags for narsil serve, in one word each")
    add("--json", type=Path, help="write manifest and table here")
    arguments = parser.parse_args(argv)
    about = manifest(arguments)
    lines = table(run(arguments))
    print(json.dumps(about))
    print_table(lines)
    if arguments.json:
        document: dict[str, Any] = {"manifest": about, "lines": lines}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
