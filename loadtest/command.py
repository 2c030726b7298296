"""``narsil bench``: measure a running server, closed loop, open loop or up to an objective.

Exit codes: 0, 1 a request failed or was answered wrongly or there is no server, 2 wrong usage,
3 INVALID (the generator was the bottleneck), 4 a threshold was missed.
"""

import argparse
import itertools
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadtest import bare, closed, compare, figures, flags, html, progress, session, slo, workload
from loadtest.encodings import Context
from loadtest.flags import BARE
from loadtest.lab.manifest import manifest
from loadtest.schedule import ScheduleError
from loadtest.session import Measured, Session, Setting
from loadtest.wires.kinds import KINDS
from loadtest.workload import Mix
from scheduler.backend import Backend
from scheduler.errors import LoadError

FAILED, INVALID, MISSED = 1, 3, 4
_CLOSED_GUESS = 32
# How the found rate is confirmed: longer, and a little lower if it is not kept.
_CONFIRM_TIMES, _CONFIRM_STEP, _CONFIRM_TRIES = 2.0, 0.95, 4


def main(argv: Sequence[str]) -> int:
    """Measure each combination and print one JSON object a line; return the exit code.

    Why requests fail is said on stderr. No connection ends the run.
    """
    if argv and argv[0] == "compare":
        return compare.main(argv[1:])
    arguments = flags.parse(argv)
    # aioquic also logs why a handshake failed; the exception says it once.
    logging.getLogger("quic").addHandler(logging.NullHandler())
    try:
        return _run(arguments, argv)
    except (closed.NoServerError, LoadError, ScheduleError) as error:
        print(f"narsil bench: {error}", file=sys.stderr)
        return FAILED


def machine() -> dict[str, object]:
    """Return what a measurement runs on: machine, quota, versions, commit and time."""
    return manifest(argparse.Namespace())


def _run(arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    shape = _fitting(_shape(arguments.artifact), arguments.ranking)
    head = {**manifest(arguments), "command": ["narsil", "bench", *argv]}
    print(json.dumps(head))
    backend = None
    if BARE in arguments.wire or arguments.verify:
        backend = bare.load(arguments.artifact, "torch_dlrm")
    golden = backend if arguments.verify else None
    with progress.shown() as look, session.opened(arguments, shape, golden, look) as opened:
        report = _Report(opened, head)
        for setting in _settings(arguments):
            if setting.wire == BARE and backend is not None:
                report.bare(setting, backend)
            elif arguments.search:
                _search(report, setting)
            else:
                report.add(opened.measure(setting))
    report.write()
    return report.code


def _fitting(shape: workload.ModelShape, context: Context) -> workload.ModelShape:
    """Return ``shape`` if it has what ``context`` takes. Raises LoadError."""
    left = shape.dense_features - context.columns, len(shape.features) - context.features
    if min(left) < 0 or not any(left):
        raise LoadError(
            f"--ranking {context.columns}+{context.features}: the model has "
            f"{shape.dense_features} dense columns and {len(shape.features)} id features, "
            "and something must be left for the candidates"
        )
    return shape


def _shape(artifact: Path) -> workload.ModelShape:
    try:
        return workload.read_shape(artifact)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise LoadError(f"{artifact} is not an artifact folder: {error}") from error


def _settings(arguments: argparse.Namespace) -> Iterator[Setting]:
    """Repeat the whole round, so that a slow spell of the machine hits all combinations alike."""
    loads = [(1, rate) for rate in arguments.rate or ()]
    loads = loads or [(concurrency, 0.0) for concurrency in arguments.concurrency]
    for _ in range(arguments.repeats):
        for wire, rows, load in itertools.product(arguments.wire, arguments.rows, loads):
            mix = Mix(rows, arguments.pooling, arguments.zipf, arguments.ranking)
            if wire == BARE:
                if load == (1, 0.0):
                    yield Setting(wire, "", mix)
                continue
            for url in arguments.url or [KINDS[wire].url]:
                yield Setting(wire, url, mix, *load)


def _search(report: "_Report", setting: Setting) -> None:
    """Find the highest rate that keeps the objective, then confirm it in a longer run.

    Responses count from the intended send, so a late generator makes the rate lower, not higher;
    whether it was late decides if the confirming run is valid.
    """
    opened, given = report.session, report.session.arguments

    def tried(rate: float, longer: float = 1.0) -> Measured:
        one = Setting(setting.wire, setting.url, setting.mix, 1, rate)
        return opened.measure(one, given.seconds * longer)

    def keeps(rate: float) -> bool:
        return bool(given.slo.met(report.probe(tried(rate)).outcome))

    most = opened.measure(Setting(setting.wire, setting.url, setting.mix, _CLOSED_GUESS))
    report.probe(most)
    guess = max(1.0, most.outcome.answered / most.outcome.elapsed_s)
    rate = slo.search(keeps, guess, given.precision)
    for _ in range(_CONFIRM_TRIES if rate else 0):
        confirmed = tried(rate, _CONFIRM_TIMES)
        if given.slo.met(confirmed.outcome):
            report.add(confirmed)
            return
        report.probe(confirmed)
        rate *= _CONFIRM_STEP
    print(f"narsil bench: no rate keeps {given.slo}", file=sys.stderr)
    report.codes.add(MISSED)


class _Report:
    """Print each run, keep it for the files, and the exit codes that it asks for."""

    def __init__(self, opened: Session, head: dict[str, object]) -> None:
        self.session = opened
        self.codes: set[int] = set()
        self._head = head
        self._runs: list[dict[str, object]] = []
        self._printed = 0

    @property
    def code(self) -> int:
        """Return the exit code: the gravest."""
        return next((code for code in (FAILED, INVALID, MISSED) if code in self.codes), 0)

    def bare(self, setting: Setting, backend: Backend) -> None:
        """Measure the forward alone, and report it."""
        given, rows = self.session.arguments, setting.mix.rows[0][0]
        result = bare.run(backend, self.session.shape, rows, given.requests, given.seconds)
        labels = setting.labels(given.arrivals, 1)
        print(json.dumps({**labels, **result.summary(rows)}), flush=True)
        self._runs.append({**labels, **result.summary(rows)})

    def probe(self, measured: Measured) -> Measured:
        """Print a run of a search, and return it."""
        self._print(self.session.figures(measured) | {"probe": True})
        return measured

    def _print(self, line: dict[str, object]) -> None:
        """Print the calibrations not yet printed, and ``line``."""
        for key, alone in [*self.session.ceilings.items()][self._printed :]:
            figure = alone.figures() if alone else "no null server speaks this wire"
            print(json.dumps({"generator_alone": figure, "wire": key[0], "rows": str(key[1])}))
        self._printed = len(self.session.ceilings)
        print(json.dumps(line), flush=True)

    def add(self, measured: Measured) -> None:
        """Print and keep a run."""
        line = self.session.figures(measured)
        self._print(line)
        samples = {"samples": measured.samples} if measured.samples else {}
        self._runs.append({**line, **figures.detail(measured.outcome), **samples})
        given, outcome = self.session.arguments, measured.outcome
        asked = outcome.answered + outcome.errors
        if outcome.mismatches or outcome.errors > given.max_error_rate * asked or not asked:
            self.codes.add(FAILED)
        if outcome.errors:
            print(f"narsil bench: {outcome.failures}", file=sys.stderr)
        if outcome.mismatches:
            print(f"narsil bench: {outcome.mismatches} wrong answers", file=sys.stderr)
        if measured.faults:
            self.codes.add(INVALID)
            print(f"narsil bench: INVALID: {'; '.join(measured.faults)}", file=sys.stderr)
        if given.slo and not given.slo.met(outcome):
            self.codes.add(MISSED)

    def write(self) -> None:
        """Write the files that were asked for."""
        given = self.session.arguments
        alone = [
            {"wire": key[0], "rows": str(key[1]), **(found.figures() if found else {})}
            for key, found in self.session.ceilings.items()
        ]
        document = {"manifest": self._head, "generator_alone": alone, "runs": self._runs}
        if given.json:
            given.json.write_text(json.dumps(document), encoding="utf-8")
        if given.html:
            given.html.write_text(html.page(document), encoding="utf-8")
