"""Runs against a real server: how long requests took, batches took, its event loop worked."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from loadtest.drive import Plan
from loadtest.drive import run as drive
from loadtest.fleet.timed import Ended, Log
from loadtest.record import Outcome
from loadtest.schedule import Times
from loadtest.wires.connect import connected
from loadtest.wires.kinds import KINDS, target

_CONNECTIONS = 4
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class FailedError(Exception):
    """A request failed."""


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
    """One run: its outcome, what the server counted, what its event loop worked and waited for.

    The latter in seconds, of a processor and for one. ``batches`` are those that were noted, their
    ``ended_s`` from the run's start on. ``others`` is what everybody but server and client had of
    all processors.
    """

    outcome: Outcome
    statistics: Statistics
    loop_cpu_s: float
    loop_wait_s: float
    batches: tuple[Ended, ...]
    others: float = 0.0

    @property
    def requests(self) -> int:
        """Return how many the server answered, warm-up included."""
        return self.statistics.waited[0]

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
    log: Log | None = None

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

    def loop_s(self) -> tuple[float, float]:
        """Return what its main thread, which is the event loop's, has run and waited to run."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat")
        ran_ns, waited_ns, _ = path.read_text(encoding="ascii").split()
        return int(ran_ns) / 1e9, int(waited_ns) / 1e9

    def run(self, plan: Plan) -> Run:
        """Carry out ``plan``. Raises NoServerError, and FailedError for a request that failed."""
        kind = KINDS["grpc"]
        where = target(kind, f"grpc://127.0.0.1:{self.grpc_port}", "")
        before, (cpu_s, wait_s) = self.statistics(), self.loop_s()
        others_s, began_s = self._others_s(), time.perf_counter()
        with connected(kind.scheme, where, _CONNECTIONS) as wires:
            start_s = time.perf_counter() + 0.01
            outcome = drive(wires, plan, start_s)
        others_s, took_s = self._others_s() - others_s, time.perf_counter() - began_s
        if outcome.errors:
            raise FailedError(str(outcome.failures))
        cpu_after_s, wait_after_s = self.loop_s()
        batches = tuple(
            replace(batch, ended_s=batch.ended_s - start_s)
            for batch in (self.log.new() if self.log else ())
        )
        statistics = self.statistics().since(before)
        return Run(
            outcome, statistics, cpu_after_s - cpu_s, wait_after_s - wait_s, batches,
            others_s / took_s / (os.cpu_count() or 1),
        )  # fmt: skip

    def _others_s(self) -> float:
        """Return the processor time of everybody but the server and this process."""
        every = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        worked = sum(map(int, every[:3])) + sum(map(int, every[5:8]))  # but for what idled
        own = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (worked - int(own[11]) - int(own[12])) * _TICK_S - time.process_time()


def closed(bodies: Sequence[bytes], in_flight: int, seconds: float) -> Plan:
    """Return a closed loop."""
    return Plan(bodies, 0.0, seconds, in_flight=in_flight)


def opened(bodies: Sequence[bytes], due_s: Times, warmup_s: float, seconds: float) -> Plan:
    """Return an open loop."""
    return Plan(bodies, warmup_s, seconds, due_s=due_s)


@contextlib.contextmanager
def serving(options: Sequence[str], batches: Path | None) -> Iterator[Box]:
    """Run ``box_server`` in a process of its own, on one processor, and the caller on the others.

    It notes each batch in ``batches``, if that is a file.
    """
    cpus = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "loadtest.fleet.box_server", *options]
    if batches:
        command += ["--batches", str(batches)]
    os.sched_setaffinity(0, cpus[:1])  # inherited
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    finally:
        os.sched_setaffinity(0, cpus[1:] or cpus)
    with process:
        assert process.stdout is not None
        try:
            grpc_port, http_port = map(int, process.stdout.readline().split())
            yield Box(process.pid, grpc_port, http_port, Log(batches) if batches else None)
        finally:
            process.terminate()
            os.sched_setaffinity(0, cpus)
