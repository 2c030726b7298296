"""What the scheduler itself costs a request, above the bare hand-off measured beside it.

    python -m loadtest.lab.overhead

Closed loop, a backend that takes no time, no transport. ``us`` is the run's time by its requests:
at 1 in flight the round trip, at more what one request takes of the loop and the lane together.
``cpu`` is what it took of the processors, which a busy machine changes less. ``before`` is from the
call to the backend's begin, ``after`` from its end to the reply: at more than 1 in flight mostly
the wait for the others.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from backends.fake import FakeOptions
from loadtest.lab import closed_loop, floor, setting, stats
from loadtest.lab.backends import StampingBackend
from loadtest.lab.floor import HandOff, Stamps
from loadtest.lab.manifest import manifest
from loadtest.lab.tables import print_table
from scheduler.engine import Engine
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest

Ask = Callable[[], Awaitable[Stamps]]

MODES = {
    "batch": SchedulerOptions(),
    "batch, inline_below_s=0": SchedulerOptions(inline_below_s=0.0),
    "worker": SchedulerOptions(mode="worker"),
    "inline": SchedulerOptions(mode="inline"),
}
HAND_OFF, INLINE = "floor: hand-off", "floor: inline"


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds a request: all of it, of the processors, before and after the backend."""

    total_us: float
    cpu_us: float
    before_us: float
    after_us: float


async def measure(ask: Ask, in_flight: int, seconds: float) -> Cost:
    """Keep ``in_flight`` requests going for so long."""
    before_s = after_s = 0.0

    async def stamped() -> None:
        nonlocal before_s, after_s
        sent_s = time.perf_counter()
        began_s, ended_s = await ask()
        before_s += began_s - sent_s
        after_s += time.perf_counter() - ended_s

    cpu_begin_s = time.process_time()
    done = await closed_loop.run(stamped, in_flight, seconds)
    cpu_s = time.process_time() - cpu_begin_s
    count = len(done.latencies_s)
    return Cost(*(1e6 * part_s / count for part_s in (done.elapsed_s, cpu_s, before_s, after_s)))


def yielding(ask: Ask) -> Ask:
    """Return ``ask`` with a turn of the loop after it: nothing else would ever let the loop go on.

    Without it an inline run would start and cancel timers for seconds and let the loop close none.
    """

    async def ask_and_yield() -> Stamps:
        stamps = await ask()
        await asyncio.sleep(0)
        return stamps

    return ask_and_yield


def stamping(engine: Engine, requests: Sequence[InferRequest]) -> Ask:
    """Return what asks ``engine`` and returns the stamps of the answer."""
    ask = setting.asking(engine, requests)

    async def ask_for_stamps() -> Stamps:
        stamps = (await ask()).outputs["default"][0]
        return float(stamps[0]), float(stamps[1])

    return ask_for_stamps


@contextlib.asynccontextmanager
async def contestants(arguments: argparse.Namespace) -> AsyncIterator[dict[str, Ask]]:
    """Have everything that is to be measured ready at once, so that rounds can alternate."""
    requests = setting.make_requests(setting.FAKE_SHAPE, arguments.rows, 1000, arguments.seed)
    requests = [replace(request, timeout_s=arguments.timeout_s) for request in requests]
    hand_off = HandOff()
    asks: dict[str, Ask] = {HAND_OFF: hand_off.ask, INLINE: yielding(floor.inline)}
    async with contextlib.AsyncExitStack() as undo:
        undo.callback(hand_off.stop)
        for mode in arguments.modes:
            backend = StampingBackend(FakeOptions(compute_s=arguments.compute_s))
            engine = await undo.enter_async_context(setting.serving(backend, MODES[mode]))
            ask = stamping(engine, requests)
            asks[mode] = yielding(ask) if mode == "inline" else ask
        yield asks


async def run(arguments: argparse.Namespace) -> dict[tuple[str, int], list[Cost]]:
    """Return the cost of each contestant and number in flight, one per round."""
    costs: dict[tuple[str, int], list[Cost]] = {}
    async with contestants(arguments) as asks:
        for number in range(arguments.rounds + 1):
            for in_flight, name in itertools.product(arguments.in_flight, asks):
                cost = await measure(asks[name], in_flight, arguments.seconds)
                if number:  # the first round warms up
                    costs.setdefault((name, in_flight), []).append(cost)
    return costs


def table(costs: dict[tuple[str, int], list[Cost]]) -> list[dict[str, float | str]]:
    """Return one line a contestant and number in flight: medians, and against its floor."""
    lines: list[dict[str, float | str]] = []
    for (name, in_flight), rounds in costs.items():
        base = costs[INLINE if "inline" in name.split(": ") else HAND_OFF, in_flight]
        totals, bases = ([cost.total_us for cost in each] for each in (rounds, base))
        above = [
            (one.total_us - least.total_us, one.cpu_us - least.cpu_us)
            for one, least in zip(rounds, base, strict=True)
        ]
        lines.append(
            {
                "name": name,
                "in flight": in_flight,
                "us": stats.median(totals),
                "above floor us": stats.median([total_us for total_us, _ in above]),
                "cpu us": stats.median([cost.cpu_us for cost in rounds]),
                "above floor cpu us": stats.median([cpu_us for _, cpu_us in above]),
                "x floor": stats.median_ratio(totals, bases),
                "before us": stats.median([cost.before_us for cost in rounds]),
                "after us": stats.median([cost.after_us for cost in rounds]),
            }
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the manifest and the table (``--json``: the lines as JSON)."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--in-flight", type=int, nargs="+", default=[1, 16, 64])
    add("--modes", nargs="+", choices=MODES, default=list(MODES))
    add("--rows", type=int, default=1)
    add("--timeout-s", type=float, default=10.0, help="of each request; inf: no timer")
    add("--compute-s", type=float, default=0.0, help="what the backend sleeps a batch")
    add("--seconds", type=float, default=0.4, help="each measurement")
    add("--rounds", type=int, default=9, help="after one to warm up; each measures everything")
    add("--seed", type=int, default=0)
    add("--json", action="store_true")
    arguments = parser.parse_args(argv)
    print(json.dumps(manifest(arguments)))
    lines = table(setting.run(run(arguments)))
    if arguments.json:
        print(json.dumps(lines))
    else:
        print_table(lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
