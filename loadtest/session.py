"""What the runs of one command share: requests, calibrations, and how each is carried out."""

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from loadtest import beside, calibrate, figures, processes, requests
from loadtest.calibrate import Ceiling
from loadtest.progress import Progress
from loadtest.record import Outcome
from loadtest.schedule import Arrivals
from loadtest.wires.kinds import KINDS, target
from loadtest.workload import Mix, ModelShape
from scheduler.backend import Backend
from transports.credential import bearer

_CONNECTIONS = 64
_SAMPLE_S, _MOST_SAMPLES = 0.25, 60


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing to measure: an open loop if there is a ``rate``, else a closed one."""

    wire: str
    url: str
    mix: Mix
    concurrency: int = 1
    rate: float = 0.0

    def labels(self, arrivals: Arrivals, urls: int) -> dict[str, object]:
        """Return what tells it from the others; the URL only if there are several."""
        place = {"url": self.url} if urls > 1 else {}
        if self.rate:
            load: dict[str, object] = {"arrivals": str(arrivals), "rate": round(self.rate, 3)}
        else:
            load = {"concurrency": self.concurrency}
        rows = self.mix.rows[0][0] if len(self.mix.rows) == 1 else str(self.mix)
        return {"wire": self.wire, **place, "rows": rows, **load}


@dataclass(frozen=True, slots=True)
class Measured:
    """An outcome, the mean of its requests' rows, and why it is invalid, if it is.

    ``slow`` is what became of the slow readers' requests, ``samples`` what the metrics said.
    """

    setting: Setting
    outcome: Outcome
    rows: float
    faults: list[str]
    slow: dict[str, int] = field(default_factory=dict)
    samples: list[dict[str, float]] = field(default_factory=list)


@dataclass(slots=True)
class Session:
    """Measure settings. ``backend`` computes golden scores, if they are wanted.

    ``api_key`` is sent with every request, "" for none.
    """

    arguments: argparse.Namespace
    shape: ModelShape
    folder: Path
    backend: Backend | None
    progress: Progress
    api_key: str = ""
    ceilings: dict[tuple[object, ...], Ceiling | None] = field(default_factory=dict)
    _folders: dict[tuple[str, str, Mix], Path] = field(default_factory=dict)

    def measure(self, setting: Setting, seconds: float | None = None) -> Measured:
        """Carry out one run. Raises NoServerError or ScheduleError."""
        length_s = seconds or self.arguments.seconds
        job = self._job(setting, length_s)
        alone = self._ceiling(setting, job)
        given = self.arguments
        clients = setting.concurrency if not setting.rate else job.connections
        count = math.ceil(given.slow_readers * clients)
        every_s = max(_SAMPLE_S, job.measure_s / _MOST_SAMPLES)
        with (
            beside.sampled(given.metrics, every_s, bearer(self.api_key)) as samples,
            beside.slow_readers(job, count, given.slow_bytes) as slow,
        ):
            labels = figures.labelled(setting.labels(given.arrivals, len(given.url)))
            self.progress.doing(f"measuring {labels}: {given.warmup + length_s:g} s")
            outcome = processes.run(job, self.progress.look)
        rows = float(requests.Bodies(job.folder).rows.mean())
        figures_of_slow = slow.figures() if count else {}
        why = calibrate.faults(outcome, alone)
        return Measured(setting, outcome, rows, why, figures_of_slow, samples)

    def figures(self, measured: Measured) -> dict[str, object]:
        """Return the labels and figures of a run."""
        given, outcome = self.arguments, measured.outcome
        limit_s = given.slo.limit_s if given.slo else (given.timeout_ms or math.inf) / 1e3
        line = {
            **measured.setting.labels(given.arrivals, len(given.url)),
            **figures.summary(outcome, measured.rows, bool(measured.setting.rate)),
        }
        if math.isfinite(limit_s):
            line["goodput_per_s"] = figures.goodput(outcome, limit_s)
        if given.slo:
            line["slo"], line["slo_met"] = str(given.slo), given.slo.met(outcome)
        if outcome.ends:
            line["after_sigterm"] = figures.after_signal(outcome)
        if measured.slow:
            line["slow_readers"] = measured.slow
        if given.verify:
            line["mismatches"] = outcome.mismatches
        if measured.faults:
            line["invalid"] = measured.faults
        return line

    def _job(self, setting: Setting, seconds: float) -> processes.Job:
        given = self.arguments
        kind = KINDS[setting.wire]
        count = given.processes if setting.rate else min(given.processes, setting.concurrency)
        due_s = None
        if setting.rate:
            due_s = given.arrivals.times(setting.rate, given.warmup + seconds, given.seed)
        return processes.Job(
            scheme=kind.scheme,
            target=target(
                kind,
                setting.url,
                str(given.ca),
                given.timeout_ms or math.inf,
                given.model or (self.shape.name if kind.names_model else ""),
                self.api_key,
            ),
            folder=self._requests(setting),
            encoding=kind.encoding,
            connections=self._connections(setting, count),
            warmup_s=given.warmup,
            measure_s=seconds,
            due_s=due_s,
            in_flight=0 if setting.rate else setting.concurrency,
            tolerance=given.tolerance if given.verify else math.inf,
            stride=count,
            cancel_every=given.cancel_every,
            cancel_after_s=given.cancel_after_ms / 1e3,
            stop_pid=given.stop_pid or 0,
            stop_after_s=given.signal_after if given.stop_pid else math.inf,
        )

    def _connections(self, setting: Setting, count: int) -> int:
        if KINDS[setting.wire].scheme != "http":
            return int(self.arguments.connections or count)
        if not setting.rate:
            return setting.concurrency
        return int(self.arguments.connections or _CONNECTIONS)

    def _requests(self, setting: Setting) -> Path:
        kind, given = KINDS[setting.wire], self.arguments
        key = (kind.encoding, given.model or self.shape.name, setting.mix)
        if key not in self._folders:
            folder = self.folder / str(len(self._folders))
            folder.mkdir()
            self.progress.doing(f"making requests of {setting.mix} rows")
            order = requests.Order(
                setting.mix, kind.encoding, key[1], given.requests, given.memory_mb << 20,
                given.seed,
            )  # fmt: skip
            requests.write(folder, self.shape, order, self.backend)
            self._folders[key] = folder
        return self._folders[key]

    def _ceiling(self, setting: Setting, job: processes.Job) -> Ceiling | None:
        if self.arguments.no_calibration:
            return None
        key = (setting.wire, setting.mix, job.target.tls, job.stride, job.in_flight)
        if key not in self.ceilings:
            self.progress.doing("measuring the generator alone")
            self.ceilings[key] = calibrate.ceiling(job)
        return self.ceilings[key]


@contextmanager
def opened(
    arguments: argparse.Namespace,
    shape: ModelShape,
    backend: Backend | None,
    progress: Progress,
    api_key: str = "",
) -> Iterator[Session]:
    """Open a session whose requests are deleted at the end."""
    with TemporaryDirectory(prefix="narsil-bench-") as folder:
        yield Session(arguments, shape, Path(folder), backend, progress, api_key)
