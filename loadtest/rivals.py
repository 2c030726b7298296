"""What the bars compare: servers of one artifact, and its forward alone, one after another."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest import bare, drive, workload
from loadtest.closed import Result
from loadtest.cpp_reference.serve import YardstickError, serving
from loadtest.encodings import encode
from loadtest.flags import CERTIFICATE
from loadtest.record import Outcome
from loadtest.schedule import Arrivals
from loadtest.wires.connect import connected
from loadtest.wires.kinds import KINDS, target
from loadtest.workload import Mix, ModelShape
from scheduler.backend import Backend

# Narsil's by their wires.
CPP, BARE, WIRES = "c++", "bare", ("grpc", "http", "http3")
_DISTINCT_REQUESTS = 2000
_ADDRESS = re.compile(r"^  (\w+) +(\w+://[\d.]+:\d+)")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each measurement, and before it."""

    measure_s: float
    warmup_s: float


class Rivals:
    """Measure the servers at ``urls``, by name, and the bare ``backend`` on their ``cpus``."""

    def __init__(
        self,
        shape: ModelShape,
        urls: Mapping[str, str],
        backend: Backend,
        cpus: Sequence[int],
        timing: Timing,
    ) -> None:
        self._shape = shape
        self._urls = urls
        self._backend = backend
        self._cpus = cpus
        self._timing = timing
        self._bodies: dict[Mix, list[bytes]] = {}

    def closed(self, name: str, mix: Mix, in_flight: int) -> Outcome:
        """Keep ``in_flight`` requests under way to one server. Raises NoServerError."""
        timing = self._timing
        plan = drive.Plan(self._made(mix), timing.warmup_s, timing.measure_s, in_flight=in_flight)
        # HTTP/1.1 has one request at a time on a connection.
        return self._run(name, plan, in_flight if name == "http" else 1)

    def open(self, name: str, mix: Mix, rate: float) -> Outcome:
        """Send ``rate`` requests a second at random times, whatever comes back.

        Raises NoServerError.
        """
        timing = self._timing
        due_s = Arrivals("poisson").times(rate, timing.warmup_s + timing.measure_s, seed=0)
        plan = drive.Plan(self._made(mix), timing.warmup_s, timing.measure_s, due_s)
        return self._run(name, plan, 1)

    def bare(self, rows: int) -> Result:
        """Run one forward after another, where the servers run."""
        with pinned(self._cpus):
            return bare.run(
                self._backend, self._shape, rows, _DISTINCT_REQUESTS, self._timing.measure_s
            )

    def _run(self, name: str, plan: drive.Plan, connections: int) -> Outcome:
        kind = KINDS["grpc" if name == CPP else name]
        place = target(kind, self._urls[name], str(CERTIFICATE))
        with connected(kind.scheme, place, connections) as wires:
            return drive.run(wires, plan, time.perf_counter())

    def _made(self, mix: Mix) -> list[bytes]:
        if mix not in self._bodies:
            shape = self._shape
            self._bodies[mix] = [
                encode("protobuf", shape.name, shape.features, inputs)
                for _, inputs in workload.draws(shape, mix, _DISTINCT_REQUESTS, 0)
            ]
        return self._bodies[mix]


@contextlib.contextmanager
def rivals(artifact: Path, backend: str, flags: Sequence[str], timing: Timing) -> Iterator[Rivals]:
    """Serve ``artifact`` on the first processor, and leave the caller the others.

    Raises YardstickError, LoadError.
    """
    cpus = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        with pinned(cpus[:1]):  # inherited by the servers
            cpp = stack.enter_context(serving(artifact))
            ours = stack.enter_context(narsil(artifact, [f"--backend={backend}", *flags]))
            alone = bare.load(artifact, backend)
        stack.enter_context(pinned(cpus[1:] or cpus))
        shape = workload.read_shape(artifact)
        yield Rivals(shape, {CPP: cpp, **ours}, alone, cpus[:1], timing)


@contextlib.contextmanager
def pinned(cpus: Sequence[int]) -> Iterator[None]:
    """Keep the calling thread, and what it starts, on ``cpus``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def narsil(
    artifact: Path, flags: Sequence[str], wires: Sequence[str] = WIRES
) -> Iterator[dict[str, str]]:
    """Serve in a process of its own; yield the URLs by wire. Raises YardstickError."""
    script = Path(sys.executable).with_name("narsil")
    command = [str(script), "serve", str(artifact), f"--transports={','.join(wires)}"]
    command += [*(f"--{wire}-port=0" for wire in wires), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        urls: dict[str, str] = {}
        try:
            for line in process.stdout:
                if found := _ADDRESS.match(line):
                    # The certificate for development is for this name, too.
                    urls[found[1]] = found[2].replace("https://127.0.0.1", "https://localhost")
                if len(urls) == len(wires):
                    break
            else:
                raise YardstickError("narsil serve ended before it was ready; see above")
            yield urls
        finally:
            process.terminate()
