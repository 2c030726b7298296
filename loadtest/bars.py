"""``python -m loadtest.bars ARTIFACT``: the promises, measured beside the C++ yardstick.

All servers run the same artifact, one thread a forward, on the same processor; the client has the
other ones. Within a round both sides of a bar take turns, and a figure is the median of the rounds'
ratios: a slow spell of the machine hits both alike. Lines with nothing "to reach" are no bars: they
take turns with the one above them, to say what it can mean. Exit code 1 if a bar is not met.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from loadtest.closed import NoServerError
from loadtest.command import machine
from loadtest.cpp_reference.serve import YardstickError
from loadtest.lab.tables import print_table
from loadtest.record import Outcome
from loadtest.rivals import BARE, CPP, Rivals, Timing, rivals
from loadtest.workload import Mix, parse_rows
from scheduler.errors import LoadError

# What a closed loop with so many in flight gets is the capacity.
_CAPACITY_IN_FLIGHT = 16
MIX = "1:50+10:30+100:20"
OWN_P50 = "own p50"


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise: ``wire``'s figure by that of ``against``, at most or at least ``limit``.

    ``in_flight`` 0 is an open loop at ``share`` of the capacity: by OWN_P50 of its own, by another
    server's p99 both at that of the other's. Without a ``limit`` it is no promise. ``beside`` is
    measured in turns with it, to say what it can mean.
    """

    figure: Literal["p50 ms", "p99 ms", "samples/s"]
    wire: str
    against: str
    in_flight: int
    rows: str
    limit: float | None = None
    beside: "tuple[Bar, ...]" = ()
    share: float = 0.7

    @property
    def at_most(self) -> bool:
        """Return whether less is better."""
        return self.figure != "samples/s"

    @property
    def mix(self) -> Mix:
        """Return the rows of its requests."""
        return Mix(parse_rows(self.rows))

    def met(self, ratio: float) -> bool:
        """Return whether ``ratio`` keeps it; without a limit there is nothing to keep."""
        if self.limit is None:
            return True
        return ratio <= self.limit if self.at_most else ratio >= self.limit

    def round(self, sides: Rivals) -> tuple[float, float]:
        """Return the figures of ``against`` and of ``wire``. Raises NoServerError."""
        if self.figure == "p99 ms":
            return self._tail(sides)
        return self._closed(sides, self.against), self._closed(sides, self.wire)

    def _tail(self, sides: Rivals) -> tuple[float, float]:
        mix, own = self.mix, self.against == OWN_P50
        if self.in_flight:
            return _percentiles_ms(_sound(sides.closed(self.wire, mix, self.in_flight)))
        paced = self.wire if own else self.against
        most = _sound(sides.closed(paced, mix, _CAPACITY_IN_FLIGHT))
        rate = self.share * most.answered / most.elapsed_s
        theirs_ms = _percentiles_ms(_sound(sides.open(paced, mix, rate)))
        if own:
            return theirs_ms
        ours_ms = _percentiles_ms(_sound(sides.open(self.wire, mix, rate)))
        return theirs_ms[1], ours_ms[1]

    def _closed(self, sides: Rivals, name: str) -> float:
        if name == BARE:
            alone = sides.bare(int(self.rows))
            return len(alone.latencies_s) / alone.elapsed_s * int(self.rows)
        outcome = _sound(sides.closed(name, self.mix, self.in_flight))
        if self.figure == "p50 ms":
            return outcome.service.percentile(50) * 1e3
        return outcome.answered / outcome.elapsed_s * int(self.rows)


# The same with nothing queued, one by one and far apart (a request that finds cold caches takes
# twice the time); the yardstick's own; and both at the rate that is 70 % of what the yardstick can.
_BESIDE_THE_TAIL = (
    Bar("p99 ms", "grpc", OWN_P50, 1, MIX),
    Bar("p99 ms", "grpc", OWN_P50, 0, MIX, share=0.05),
    Bar("p99 ms", CPP, OWN_P50, 0, MIX),
    Bar("p99 ms", "grpc", CPP, 0, MIX),
)
BARS = (
    Bar("p50 ms", "grpc", CPP, 1, "1", 0.70),
    Bar("p50 ms", "grpc", CPP, 1, "10", 0.75),
    Bar("p50 ms", "grpc", CPP, 1, "100", 0.80),
    Bar("samples/s", "grpc", CPP, 16, "1", 3.0),
    Bar("samples/s", "grpc", CPP, 16, "10", 2.5),
    Bar("samples/s", "grpc", CPP, 16, "100", 1.5),
    Bar("samples/s", "grpc", CPP, 64, "1", 4.0),
    Bar("samples/s", "grpc", BARE, 16, "100", 0.85),
    Bar("samples/s", "http", "grpc", 16, "100", 0.9),
    Bar("samples/s", "http3", "grpc", 16, "100", 0.7),
    Bar("p99 ms", "grpc", OWN_P50, 0, MIX, 3.0, _BESIDE_THE_TAIL),
)


def measure(bar: Bar, sides: Rivals, rounds: int) -> list[dict[str, float | str]]:
    """Return the lines of ``bar`` and of what is measured beside it. Raises NoServerError."""
    taking_turns = (bar, *bar.beside)
    found: list[list[tuple[float, float]]] = [[] for _ in taking_turns]
    for _ in range(rounds):
        for each, pairs in zip(taking_turns, found, strict=True):
            pairs.append(each.round(sides))
    return [line(each, pairs) for each, pairs in zip(taking_turns, found, strict=True)]


def line(bar: Bar, rounds: Sequence[tuple[float, float]]) -> dict[str, float | str]:
    """Return what the table says of a bar after ``rounds`` (theirs, ours)."""
    ratios = [ours / theirs for theirs, ours in rounds]
    ratio = float(np.median(ratios))
    theirs, ours = np.median(rounds, axis=0)
    whose = "" if bar.against == OWN_P50 else f"{bar.against}'s "
    said = {"to reach": "", "met": ""}
    if bar.limit is not None:
        said["to reach"] = f"{'<=' if bar.at_most else '>='} {bar.limit}"
        said["met"] = "yes" if bar.met(ratio) else "no"
    return {
        "figure": bar.figure,
        "wire": bar.wire,
        "in flight": str(bar.in_flight or f"{bar.share:.0%} of {whose}capacity"),
        "rows": bar.rows,
        "against": bar.against,
        "theirs": float(theirs),
        "ours": float(ours),
        "ratio": f"{ratio:.2f}",
        "spread": f"{min(ratios):.2f} - {max(ratios):.2f}",
        **said,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and how many bars are met; 1 if one is not, 2 if none could be."""
    arguments = _arguments(argv)
    command = ["python -m loadtest.bars", *(argv or sys.argv[1:])]
    print(json.dumps({**machine(), "command": command}))
    timing = Timing(arguments.seconds, arguments.warmup)
    chosen = [BARS[number - 1] for number in arguments.only or range(1, len(BARS) + 1)]
    try:
        with rivals(
            arguments.artifact, arguments.backend, arguments.serve.split(), timing
        ) as sides:
            lines = [told for bar in chosen for told in measure(bar, sides, arguments.rounds)]
    except (YardstickError, NoServerError, LoadError, OSError) as error:
        print(f"loadtest.bars: {error}", file=sys.stderr)
        return 2
    print_table(lines)
    met = sum(told["met"] == "yes" for told in lines)
    print(f"{met} of {len(chosen)} bars met")
    return 0 if met == len(chosen) else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bars")
    shown = "(default: %(default)s)"
    add = parser.add_argument
    add("artifact", type=Path, help="artifact folder that all serve")
    add("--backend", default="torch_dlrm", help=f"Narsil's {shown}")
    add("--serve", default="", help="flags for narsil serve, in one word each")
    add("--only", type=_number, nargs="+", help=f"these bars, 1 to {len(BARS)} (default: all)")
    add("--rounds", type=int, default=5, help=shown)
    add("--seconds", type=float, default=2.0, help=f"each measurement {shown}")
    add("--warmup", type=float, default=0.5, help=f"seconds before each {shown}")
    return parser.parse_args(argv)


def _percentiles_ms(outcome: Outcome) -> tuple[float, float]:
    return outcome.response.percentile(50) * 1e3, outcome.response.percentile(99) * 1e3


def _number(text: str) -> int:
    number = int(text)
    if not 1 <= number <= len(BARS):
        raise ValueError(text)
    return number


def _sound(outcome: Outcome) -> Outcome:
    """Return ``outcome`` if every request was answered. Raises YardstickError."""
    if outcome.errors:
        raise YardstickError(str(outcome.failures))
    return outcome


if __name__ == "__main__":
    raise SystemExit(main())
