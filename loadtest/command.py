"""``narsil bench``: measure a running server, closed loop, open loop or up to an objective.

Exit codes: 0, 1 a request failed or was answered wrongly or there is no server, 2 wrong usage,
3 INVALID (the generator was the bottleneck), 4 a threshold was missed.
"""

import argparse
import itertools
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadtest import bare, closed, compare, flags, progress, report, session, slo, workload
from loadtest.encodings import Context
from loadtest.flags import BARE
from loadtest.lab.manifest import manifest
from loadtest.report import FAILED, MISSED, Report
from loadtest.schedule import ScheduleError
from loadtest.session import Measured, Setting
from loadtest.wires.kinds import KINDS
from loadtest.workload import Mix
from scheduler.errors import LoadError
from transports.credential import read_key

_CLOSED_GUESS = 32
# How the found rate is confirmed: longer, and a little lower if it is not kept.
_CONFIRM_TIMES, _CONFIRM_STEP, _CONFIRM_TRIES = 2.0, 0.95, 4


def main(argv: Sequence[str]) -> int:
    """Measure each combination and print a line of each; return the exit code.

    What is being done, and why requests fail, is said on stderr. No connection ends the run.
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
    key = _api_key(arguments.api_key_file)
    print(report.heading(head, arguments), flush=True)
    backend = None
    if BARE in arguments.wire or arguments.verify:
        backend = bare.load(arguments.artifact, "torch_dlrm")
    golden = backend if arguments.verify else None
    with (
        progress.shown("narsil bench") as told,
        session.opened(arguments, shape, golden, told, key) as opened,
    ):
        made = Report(opened, head)
        for setting in _settings(arguments):
            if setting.wire == BARE and backend is not None:
                made.bare(setting, backend)
            elif arguments.search:
                _search(made, setting)
            else:
                made.add(opened.measure(setting))
    made.write()
    return made.code


def _api_key(file: Path | None) -> str:
    """Return the key in ``file``, "" without one. Raises LoadError."""
    try:
        return read_key(file)
    except ValueError as error:
        raise LoadError(str(error)) from error


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
    except OSError as error:
        raise LoadError(
            f"{artifact} is not an artifact folder: {error.filename}: {error.strerror};"
            " the server's address goes to --url"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
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


def _search(made: Report, setting: Setting) -> None:
    """Find the highest rate that keeps the objective, then confirm it in a longer run.

    Responses count from the intended send, so a late generator makes the rate lower, not higher;
    whether it was late decides if the confirming run is valid.
    """
    opened, given = made.session, made.session.arguments

    def tried(rate: float, longer: float = 1.0) -> Measured:
        one = Setting(setting.wire, setting.url, setting.mix, 1, rate)
        return opened.measure(one, given.seconds * longer)

    def keeps(rate: float) -> bool:
        return bool(given.slo.met(made.probe(tried(rate)).outcome))

    most = opened.measure(Setting(setting.wire, setting.url, setting.mix, _CLOSED_GUESS))
    made.probe(most)
    guess = max(1.0, most.outcome.answered / most.outcome.elapsed_s)
    rate = slo.search(keeps, guess, given.precision)
    for _ in range(_CONFIRM_TRIES if rate else 0):
        confirmed = tried(rate, _CONFIRM_TIMES)
        if given.slo.met(confirmed.outcome):
            made.found(rate)
            made.add(confirmed)
            return
        made.probe(confirmed)
        rate *= _CONFIRM_STEP
    print(f"narsil bench: no rate keeps {given.slo}", file=sys.stderr)
    made.codes.add(MISSED)
