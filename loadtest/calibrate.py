"""How fast the generator is alone: the same requests to a server that does nothing."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loadtest import processes
from loadtest.record import Outcome

WARMUP_S, MEASURE_S = 0.2, 1.0
IN_FLIGHT = 16
MOST_LAG_S = 1e-3
LEAST_ACHIEVED = 0.99
# Of what the generator can do at most: nearer to it, it would be the generator that is measured.
MOST_SHARE = 0.9
_CERTIFICATE = "certificate.pem"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the generator alone does: requests a second, their p50, and its CPU a request (s)."""

    rate: float
    p50_s: float
    cpu_s: float

    def figures(self) -> dict[str, float]:
        """Return them for printing."""
        return {
            "requests_per_s": round(self.rate, 1),
            "p50_ms": round(self.p50_s * 1e3, 3),
            "cpu_us_per_request": round(self.cpu_s * 1e6, 1),
        }


@contextmanager
def null_server(scheme: str, folder: Path, tls: bool = False) -> Iterator[int]:
    """Run a server that does nothing, in a process of its own; yield its port.

    With a certificate, if it needs one or ``tls`` is wanted, in ``folder``.
    """
    command = [sys.executable, "-m", "loadtest.null_server", scheme, *[str(folder)] * tls]
    if scheme == "https":
        command = [sys.executable, "-m", "loadtest.null_http3", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def ceiling(job: processes.Job) -> Ceiling:
    """Measure the generator of ``job`` alone."""
    with (
        tempfile.TemporaryDirectory() as folder,
        null_server(job.scheme, Path(folder), job.target.tls) as port,
    ):
        ca = str(Path(folder, _CERTIFICATE))
        alone = replace(
            job,
            target=replace(job.target, host="127.0.0.1", port=port, ca=ca),
            warmup_s=WARMUP_S,
            measure_s=MEASURE_S,
            due_s=None,
            in_flight=max(job.in_flight, IN_FLIGHT * job.stride),
            tolerance=float("inf"),
            cancel_every=0,
            stop_pid=0,
            stop_after_s=float("inf"),
        )
        outcome = processes.run(alone)
    answered = max(1, outcome.answered)
    rate = outcome.answered / outcome.elapsed_s
    return Ceiling(rate, outcome.response.percentile(50), outcome.cpu_s / answered)


def faults(outcome: Outcome, alone: Ceiling | None) -> list[str]:
    """Return why the generator, not the server, may have shaped ``outcome``; empty if it is valid.

    A request that waits for a free connection is no lag: there the server has not answered.
    """
    found = []
    lag_s = outcome.lag.percentile(99)
    if lag_s > MOST_LAG_S:
        found.append(f"send lag p99 {lag_s * 1e3:.2f} ms > {MOST_LAG_S * 1e3:g} ms")
    # The schedule was kept if the last send was not later than the schedule's end.
    late = outcome.sending_s / outcome.measure_s
    if outcome.offered and late * LEAST_ACHIEVED > 1:
        found.append(f"sent {100 / late:.1f} % of the offered rate")
    rate = outcome.answered / outcome.elapsed_s
    if alone and rate > MOST_SHARE * alone.rate:
        found.append(f"{rate:.0f} requests/s is too near the generator's own {alone.rate:.0f}")
    return found
