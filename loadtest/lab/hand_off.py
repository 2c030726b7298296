"""Whether a lone request should run on the event loop or on a lane: decides ``inline_below_s``.

    python -m loadtest.lab.hand_off --artifact artifacts/reference

Closed loop on a real artifact in batch mode; every threshold in every round, figures against the
first threshold's of the same round.
"""

import argparse
import contextlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest import bare, workload
from loadtest.lab import closed_loop, setting, stats
from loadtest.lab.backends import Lent
from loadtest.lab.manifest import manifest
from loadtest.lab.tables import print_table
from scheduler.engine import Engine
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest


@dataclass(frozen=True, slots=True)
class Key:
    """What was measured: requests in flight, rows of each, the threshold (seconds)."""

    in_flight: int
    rows: int
    inline_below_s: float


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement: latencies (us) and requests a second."""

    p50_us: float
    p99_us: float
    requests_per_s: float


async def measure(
    engine: Engine, requests: Sequence[InferRequest], in_flight: int, seconds: float
) -> Speed:
    """Keep ``in_flight`` requests going for so long."""
    done = await closed_loop.run(setting.asking(engine, requests), in_flight, seconds)
    p50_us, p99_us = (1e6 * stats.percentile(done.latencies_s, share) for share in (0.5, 0.99))
    return Speed(p50_us, p99_us, done.rate)


async def run(arguments: argparse.Namespace) -> dict[Key, list[Speed]]:
    """Measure everything, round after round."""
    backend = bare.load(arguments.artifact, "torch_dlrm")
    setting.settle_memory()
    shape = workload.read_shape(arguments.artifact)
    speeds: dict[Key, list[Speed]] = {}
    async with contextlib.AsyncExitStack() as undo:
        engines = {
            below_s: await undo.enter_async_context(
                setting.serving(Lent(backend), SchedulerOptions(inline_below_s=below_s))
            )
            for below_s in arguments.inline_below_s
        }
        requests = {
            rows: setting.make_requests(shape, rows, 200, arguments.seed) for rows in arguments.rows
        }
        for number in range(arguments.rounds + 1):
            combinations = itertools.product(arguments.in_flight, arguments.rows, engines)
            for key in itertools.starmap(Key, combinations):
                engine, chosen = engines[key.inline_below_s], requests[key.rows]
                speed = await measure(engine, chosen, key.in_flight, arguments.seconds)
                if number:  # the first round warms up
                    speeds.setdefault(key, []).append(speed)
    return speeds


def table(speeds: dict[Key, list[Speed]]) -> list[dict[str, float | str]]:
    """Return a line a measurement: medians, and ratios to the first threshold."""
    lines: list[dict[str, float | str]] = []
    first_s = next(iter(speeds)).inline_below_s
    for key, measured in speeds.items():
        base = speeds[Key(key.in_flight, key.rows, first_s)]
        lines.append(
            {
                "in flight": key.in_flight,
                "rows": key.rows,
                "inline_below_s": key.inline_below_s,
                "p50 us": stats.median([each.p50_us for each in measured]),
                "x p50": _ratio(measured, base, "p50_us"),
                "x p99": _ratio(measured, base, "p99_us"),
                "requests/s": stats.median([each.requests_per_s for each in measured]),
                "x requests/s": _ratio(measured, base, "requests_per_s"),
            }
        )
    return lines


def _ratio(measured: Sequence[Speed], base: Sequence[Speed], figure: str) -> float:
    values, bases = ([float(getattr(each, figure)) for each in some] for some in (measured, base))
    return stats.median_ratio(values, bases)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--artifact", type=Path, default=Path("artifacts/reference"))
    add("--rows", type=int, nargs="+", default=[1, 10, 100])
    add("--in-flight", type=int, nargs="+", default=[1, 16])
    add("--inline-below-s", type=float, nargs="+", default=[0.0, 0.001, 1.0])
    add("--seconds", type=float, default=0.5)
    add("--rounds", type=int, default=9)
    add("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    print(json.dumps(manifest(arguments)))
    print_table(table(setting.run(run(arguments))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
