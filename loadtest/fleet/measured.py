"""Runs against a real server: how long requests took, batches took, its event loop worked."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest.drive import Plan
from loadtest.drive import run as drive
from loadtest.record import Outcome
from loadtest.schedule import Times
from loadtest.wires.connect import connected
from loadtest.wires.kinds import KINDS, target

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a server has counted: batches by rows as (batches, seconds), waits as (requests, s)."""

    batches: dict[int, tuple[int, float]]
    waited: tuple[int, float]

    def since(self, before: "Statistics") -> "Statistics":
        """Return what was counted after ``before``."""
        batches = {
            rows: (count - old[0], seconds - old[1])
            for rows, (count, seconds) in self.batches.items()
            if count > (old := before.batches.get(rows, (0, 0.0)))[0]
        }
        (count, seconds), (old_count, old_seconds) = self.waited, before.waited
        return Statistics(batches, (count - old_count, seconds - old_seconds))


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its outcome, what the server counted, and its event loop's CPU seconds."""

    outcome: Outcome
    statistics: Statistics
    loop_cpu_s: float

    @property
    def mean_s(self) -> float:
        """Return the mean response time."""
        used = np.flatnonzero(self.outcome.response.counts)
        latencies, _ = self.outcome.response.curve()
        return float(np.average(latencies, weights=self.outcome.response.counts[used]))


@dataclass(frozen=True, slots=True)
class Box:
    """A running server."""

    pid: int
    grpc_port: int
    http_port: int

    def statistics(self) -> Statistics:
        """Ask it what it has counted."""
        url = f"http://127.0.0.1:{self.http_port}/v2/models/stats"
        with urllib.request.urlopen(url, timeout=10) as answer:
            (model,) = json.loads(answer.read())["model_stats"]
        batches = {}
        for batch in model["batch_stats"]:
            spent = batch["compute_input"]["ns"] + batch["compute_infer"]["ns"]
            batches[batch["batch_size"]] = (batch["compute_infer"]["count"], spent / 1e9)
        queue = model["inference_stats"]["queue"]
        return Statistics(batches, (queue["count"], queue["ns"] / 1e9))

    def loop_cpu_s(self) -> float:
        """Return the CPU seconds of its main thread, which is the event loop's."""
        line = Path(f"/proc/{self.pid}/task/{self.pid}/stat").read_text(encoding="ascii")
        user, system = line.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / _TICKS_PER_S

    def run(self, plan: Plan) -> Run:
        """Carry out ``plan``. Raises NoServerError, and SystemExit for a request that failed."""
        kind = KINDS["grpc"]
        where = target(kind, f"grpc://127.0.0.1:{self.grpc_port}", "")
        before, cpu_s = self.statistics(), self.loop_cpu_s()
        with connected(kind.scheme, where, _CONNECTIONS) as wires:
            outcome = drive(wires, plan, time.perf_counter() + 0.01)
        if outcome.errors:
            raise SystemExit(f"loadtest.fleet: {outcome.failures}")
        spent_s = self.loop_cpu_s() - cpu_s
        return Run(outcome, self.statistics().since(before), spent_s)


def closed(bodies: Sequence[bytes], in_flight: int, seconds: float) -> Plan:
    """Return a closed loop."""
    return Plan(bodies, 0.0, seconds, in_flight=in_flight)


def opened(bodies: Sequence[bytes], due_s: Times, warmup_s: float, seconds: float) -> Plan:
    """Return an open loop."""
    return Plan(bodies, warmup_s, seconds, due_s=due_s)


@contextlib.contextmanager
def serving(options: Sequence[str], *, apart: bool) -> Iterator[Box]:
    """Run ``box_server`` in a process of its own.

    ``apart``: on one processor, and the caller on the others. A lane that computes needs one
    beside the event loop's.
    """
    cpus = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "loadtest.fleet.box_server", *options]
    os.sched_setaffinity(0, cpus[:1] if apart else cpus)  # inherited
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    finally:
        os.sched_setaffinity(0, cpus[1:] or cpus if apart else cpus)
    with process:
        assert process.stdout is not None
        try:
            grpc_port, http_port = map(int, process.stdout.readline().split())
            yield Box(process.pid, grpc_port, http_port)
        finally:
            process.terminate()
            os.sched_setaffinity(0, cpus)
