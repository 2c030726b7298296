"""Whether the next batch is gathered while one computes, and what that gains.

    python -m loadtest.lab.overlap --artifact artifacts/reference

Closed loop on a real artifact behind a tracing backend, in alternating rounds with gathering ahead
and without. A lane's idle time is from the end of one computation to the begin of its next.
"""

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest import bare, workload
from loadtest.lab import closed_loop, setting, stats
from loadtest.lab.backends import Interval, TracingBackend
from loadtest.lab.manifest import manifest
from loadtest.lab.svg import COLORS, Bar, timeline
from loadtest.lab.tables import print_table
from scheduler.backend import Backend
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.scheduler import Scheduler
from scheduler.types import InferRequest

AHEAD, NOT_AHEAD = "ahead", "on the lane"


class OnTheLane(Scheduler):
    """Gather each batch on the lane that computes it, once that is free."""

    def _lane_has_room(self) -> bool:
        return self._runner.free > 0


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement: requests a second, median latency and the trace."""

    requests_per_s: float
    p50_ms: float
    trace: tuple[Interval, ...]


async def measure(
    backend: Backend,
    kind: type[Scheduler],
    requests: Sequence[InferRequest],
    load: tuple[int, float],
) -> Round:
    """Serve a closed loop of ``load``: so many in flight for so many seconds."""
    tracing = TracingBackend(backend)
    scheduler = kind(tracing, SchedulerOptions(), Observer(), lambda: None)
    done = await closed_loop.run(setting.asking(scheduler, requests), *load)
    await scheduler.close(grace_s=1.0)
    return Round(done.rate, 1e3 * stats.median(done.latencies_s), tuple(tracing.intervals))


def idle_us(trace: Sequence[Interval]) -> list[float]:
    """Return each lane's idle time between one computation and its next (us)."""
    idle: list[float] = []
    last: dict[str, float] = {}
    for step in sorted(trace, key=lambda step: step.begin_s):
        if step.kind == "compute":
            if step.thread in last:
                idle.append(1e6 * (step.begin_s - last[step.thread]))
            last[step.thread] = step.end_s
    return idle


def hidden(trace: Sequence[Interval]) -> float:
    """Return the share of the batches that were gathered on another thread than computed them."""
    threads = {(step.batch, step.kind): step.thread for step in trace}
    batches = {step.batch for step in trace if step.kind == "compute"}
    apart = sum(threads[batch, "gather"] != threads[batch, "compute"] for batch in batches)
    return apart / len(batches)


def picture(trace: Sequence[Interval], shown_ms: float) -> str:
    """Draw the last ``shown_ms`` but a tenth of ``trace``, a row a thread."""
    until_s = max(step.end_s for step in trace) - shown_ms / 1e4
    since_s = until_s - shown_ms / 1e3
    colors = {"gather": COLORS[1], "compute": COLORS[0]}
    bars = [
        Bar(
            step.thread.partition("-")[2],
            1e3 * (max(step.begin_s, since_s) - since_s),
            1e3 * (min(step.end_s, until_s) - since_s),
            colors[step.kind],
            f"{step.batch}: {step.rows} rows" if step.kind == "compute" else "",
        )
        for step in sorted(trace, key=lambda step: step.thread)
        if step.end_s > since_s and step.begin_s < until_s
    ]
    return timeline("Each thread of one model", "ms", bars, colors)


async def run(arguments: argparse.Namespace) -> dict[tuple[int, str], list[Round]]:
    """Measure both ways at each number in flight, round after round."""
    backend = bare.load(arguments.artifact, "torch_dlrm")
    shape = workload.read_shape(arguments.artifact)
    requests = setting.make_requests(shape, arguments.rows, 200, arguments.seed)
    setting.settle_memory()
    rounds: dict[tuple[int, str], list[Round]] = {}
    ways = {AHEAD: Scheduler, NOT_AHEAD: OnTheLane}
    for number in range(arguments.rounds + 1):
        for in_flight, way in itertools.product(arguments.in_flight, ways):
            load = (in_flight, arguments.seconds)
            measured = await measure(backend, ways[way], requests, load)
            if number:  # the first round warms up
                rounds.setdefault((in_flight, way), []).append(measured)
    return rounds


def table(rounds: dict[tuple[int, str], list[Round]]) -> list[dict[str, float | str]]:
    """Return a line for each way and number in flight; ratios are to gathering on the lane."""
    lines: list[dict[str, float | str]] = []
    for (in_flight, way), measured in rounds.items():
        base = rounds[in_flight, NOT_AHEAD]
        idle = [stats.median(idle_us(each.trace)) for each in measured]
        rates, bases = ([each.requests_per_s for each in some] for some in (measured, base))
        lines.append(
            {
                "in flight": in_flight,
                "gathered": way,
                "of batches": stats.median([hidden(each.trace) for each in measured]),
                "rows a batch": stats.median(
                    [step.rows for each in measured for step in each.trace]
                ),
                "gather us": stats.median(_lasted_us(measured, "gather")),
                "compute us": stats.median(_lasted_us(measured, "compute")),
                "lane idle us": stats.median(idle),
                "requests/s": stats.median(rates),
                "x on the lane": stats.median_ratio(rates, bases),
                "p50 ms": stats.median([each.p50_ms for each in measured]),
            }
        )
    return lines


def _lasted_us(rounds: Sequence[Round], kind: str) -> list[float]:
    return [
        1e6 * (step.end_s - step.begin_s)
        for each in rounds
        for step in each.trace
        if step.kind == kind
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, draw the last trace with gathering ahead."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--artifact", type=Path, default=Path("artifacts/reference"))
    add("--rows", type=int, default=100)
    add("--in-flight", type=int, nargs="+", default=[1, 16, 64])
    add("--seconds", type=float, default=1.5)
    add("--rounds", type=int, default=7)
    add("--seed", type=int, default=0)
    add("--svg", type=Path, help="draw the last trace here")
    add("--shown-ms", type=float, default=400.0)
    arguments = parser.parse_args(argv)
    print(json.dumps(manifest(arguments)))
    rounds = setting.run(run(arguments))
    print_table(table(rounds))
    if arguments.svg:
        trace = rounds[max(arguments.in_flight), AHEAD][-1].trace
        arguments.svg.write_text(picture(trace, arguments.shown_ms), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
