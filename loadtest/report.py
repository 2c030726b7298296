"""What ``narsil bench`` says of its runs: lines, files and the exit code."""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from loadtest import bare, figures, html
from loadtest.session import Measured, Session, Setting
from scheduler.backend import Backend

FAILED, INVALID, MISSED = 1, 3, 4
# What --json is where the lines themselves are to be JSON.
LINES = "-"


def wants_lines(arguments: argparse.Namespace) -> bool:
    """Say whether every line is to be a JSON object."""
    return str(arguments.json) == LINES


def heading(head: Mapping[str, Any], arguments: argparse.Namespace) -> str:
    """Return the first line: what is measured with what, ``head`` saying it whole."""
    if wants_lines(arguments):
        return json.dumps(head)
    found, versions = head["machine"], head["versions"]
    load, *_ = found["load_average"]
    return (
        f"narsil bench of {arguments.artifact}: {arguments.seconds:g} s each after"
        f" {arguments.warmup:g} s of warm-up; {found['cpus']} CPUs ({found['cpu']}), load average"
        f" {load:g}, Python {versions['python']}, commit {head['commit']}"
    )


class Report:
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
        line = {**labels, **result.summary(rows)}
        self._print(line)
        self._runs.append(line)

    def probe(self, measured: Measured) -> Measured:
        """Print a run of a search, and return it."""
        self._print(self.session.figures(measured) | {"probe": True})
        return measured

    def _print(self, line: dict[str, object]) -> None:
        """Print the calibrations not yet printed, and ``line``."""
        as_json = wants_lines(self.session.arguments)
        for key, alone in [*self.session.ceilings.items()][self._printed :]:
            figure = alone.figures() if alone else "no null server speaks this wire"
            made = {"generator_alone": figure, "wire": key[0], "rows": str(key[1])}
            print(json.dumps(made) if as_json else figures.sentence_alone(made))
        self._printed = len(self.session.ceilings)
        print(json.dumps(line) if as_json else figures.sentence(line), flush=True)

    def found(self, rate: float) -> None:
        """Say what a search has found, before the run that confirms it."""
        if not wants_lines(self.session.arguments):
            slo = self.session.arguments.slo
            print(f"{rate:,.0f} requests/s is the highest rate found that keeps {slo}:")

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
            print(
                f"narsil bench: INVALID: {'; '.join(measured.faults)}; a lower load, --processes 2 "
                "or other cores for the generator may help",
                file=sys.stderr,
            )
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
        if given.json and not wants_lines(given):
            given.json.write_text(json.dumps(document), encoding="utf-8")
        if given.html:
            given.html.write_text(html.page(document), encoding="utf-8")
