"""Whether two lanes compute twice what one does, and whether two processes would.

    python -m loadtest.lab.lanes artifacts/reference --only native_dlrm:compiled,torch_dlrm:lean

Lanes share a process: Python's lock, malloc, buffers. Two processes of one lane each share nothing
but the machine, so they are what the machine has; lanes that stay behind them have something in the
way. Slices of one lane, two lanes and two processes take turns. The rates are the best of all
slices, which other work on the machine spoils least; ``cpu us`` is the processor time of a forward,
at its least: more with two than with one means that they disturb each other.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from loadtest import workload
from loadtest.candidates import Candidate, Hashing, load_one
from loadtest.compute import draw_batches
from loadtest.lab.manifest import manifest
from loadtest.lab.tables import print_table
from loadtest.scaling import CONTROL, Slice, run_slice

# How long the workers have to be told when a slice begins.
LEAD_S = 0.01
# By kind: how many threads each worker runs.
KINDS: Mapping[str, tuple[int, ...]] = {"one": (1,), "lanes": (2,), "processes": (1, 1)}


def work(arguments: argparse.Namespace) -> None:
    """Load; for each line on stdin (name, threads, begin) compute a slice and say what it was."""
    shape = workload.read_shape(arguments.artifact)
    batches = draw_batches(shape, arguments.rows)
    found = [Candidate(name, load_one(arguments.artifact, name)) for name in arguments.only]
    backends = {one.name: one.backend for one in [*found, Candidate(CONTROL, Hashing())]}
    for backend in backends.values():
        run_slice(backend, batches, 2, time.perf_counter(), arguments.slice_s)
    print("ready", flush=True)
    for line in sys.stdin:
        name, threads, begin_s = json.loads(line)
        print(*run_slice(backends[name], batches, threads, begin_s, arguments.slice_s), flush=True)


@contextlib.contextmanager
def workers(argv: Sequence[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Run two workers, loaded and warm."""
    command = [sys.executable, "-m", "loadtest.lab.lanes", *argv, "--work"]
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(2):
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            found.append(process)
        for process in found:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise SystemExit("loadtest.lab.lanes: a worker did not load")
        yield found


def measure(
    processes: Sequence[subprocess.Popen[str]], name: str, threads: Sequence[int], seconds: float
) -> Slice:
    """Have a slice computed by the first processes, each on so many threads."""
    begin_s = time.perf_counter() + LEAD_S
    chosen = list(zip(processes, threads, strict=False))
    for process, count in chosen:
        assert process.stdin is not None
        process.stdin.write(json.dumps([name, count, begin_s]) + "\n")
        process.stdin.flush()
    forwards, cpu_s = 0, 0.0
    for process, _ in chosen:
        assert process.stdout is not None
        counted, spent = process.stdout.readline().split()
        forwards, cpu_s = forwards + int(counted), cpu_s + float(spent)
    return Slice(forwards / seconds, 1e6 * cpu_s / max(1, forwards))


def line_of(
    name: str, slices: Mapping[str, Sequence[Slice]], control: Mapping[str, Sequence[Slice]]
) -> dict[str, float | str]:
    """Return what is told of one candidate, and beside it of the control."""
    best = {kind: max(one.rate for one in each) for kind, each in slices.items()}
    cpu_us = {kind: min(one.cpu_us for one in each) for kind, each in slices.items()}
    return {
        "plan": name,
        "one lane, forwards/s": best["one"],
        "two lanes / one": best["lanes"] / best["one"],
        "the same by the control's": best["lanes"] / best["one"] / _gain(control),
        "two processes / one": best["processes"] / best["one"],
        "lanes / processes": best["lanes"] / best["processes"],
        **{f"cpu us, {kind}": spent for kind, spent in cpu_us.items()},
    }


def _gain(slices: Mapping[str, Sequence[Slice]]) -> float:
    """Return what two lanes do by what one does, the best of each."""
    return max(one.rate for one in slices["lanes"]) / max(one.rate for one in slices["one"])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the manifest and the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("artifact", type=Path, nargs="?", default=Path("artifacts/reference"))
    add("--only", type=lambda text: text.split(","), default=["native_dlrm:compiled"])
    add("--rows", type=int, default=100)
    add("--slices", type=int, default=40, help="of each kind")
    add("--slice-s", type=float, default=0.05, help="seconds of each")
    add("--work", action="store_true", help="for the workers")
    argv = sys.argv[1:] if argv is None else argv
    arguments = parser.parse_args(argv)
    if arguments.work:
        work(arguments)
        return 0
    print(json.dumps(manifest(arguments)), f"load average {os.getloadavg()[0]:.1f}")
    names = [*arguments.only, CONTROL]
    slices: dict[str, dict[str, list[Slice]]] = {
        name: {kind: [] for kind in KINDS} for name in names
    }
    with workers(argv) as processes:
        for _ in range(arguments.slices):
            for name in names:
                for kind, threads in KINDS.items():
                    one = measure(processes, name, threads, arguments.slice_s)
                    slices[name][kind].append(one)
    print_table([line_of(name, each, slices[CONTROL]) for name, each in slices.items()])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
