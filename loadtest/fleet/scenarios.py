"""What a fleet does, by the simulation: the figures of docs/scale.md.

    python -m loadtest.fleet scenarios docs/benchmarks/2026-11-fleet-cost.json balancers

A calibration says what one box costs; the scenario what is asked of many. Seeded: the same command
prints the same figures.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from loadtest.fleet.balancers import BALANCERS
from loadtest.fleet.box import Box
from loadtest.fleet.calibration import read
from loadtest.fleet.fleet import simulate
from loadtest.fleet.plan import Death, Hold, Plan, Result, poisson
from loadtest.lab.tables import print_table

Line: TypeAlias = dict[str, float | str]


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What a scenario starts from: the box, a request's rows, how long, and the seed."""

    box: Box
    rows: int
    requests: int
    seed: int

    def run(self, plan: Plan, load: float) -> Result:
        """Send ``requests`` at ``load`` times the capacity of all replicas of ``plan``.

        The first fifth meets a fleet that is still empty: its latencies are left out.
        """
        rate = load * plan.replicas * self.box.capacity(self.rows)
        arrivals = poisson(rate, self.requests / rate, (self.seed,))
        result = simulate(plan, arrivals, [self.rows], self.seed)
        del result.latencies_s[: len(arrivals) // 5]
        return result

    def seconds(self, replicas: int, load: float) -> float:
        """Return how long a run is."""
        return self.requests / (load * replicas * self.box.capacity(self.rows))


def load_curve(asked: Asked) -> list[Line]:
    """One box at rising load: what its own batching makes of it."""
    loads = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
    return [{"load": load, **_figures(asked.run(Plan(asked.box), load))} for load in loads]


def balancers(asked: Asked) -> list[Line]:
    """A hundred boxes, a twentieth of them half as fast, behind every kind of balancer."""
    lines: list[Line] = []
    for load in (0.5, 0.8):
        for count in (1, 20):
            for name in BALANCERS:
                plan = Plan(asked.box, 100, balancer=name, balancers=count, slower=(2.0,) * 5)
                lines.append({"load": load, "balancers": str(count), "kind": name,
                              **_figures(asked.run(plan, load))})  # fmt: skip
    return lines


def hedging(asked: Asked) -> list[Line]:
    """A hundred boxes, two of them ten times slower; a second request after some time."""
    slow = Plan(asked.box, 100, balancer="round robin", slower=(10.0,) * 2)
    alone_ms = asked.run(dataclasses.replace(slow, slower=()), 0.5).percentile_ms(95)
    lines: list[Line] = []
    for times in (float("inf"), 4.0, 2.0, 1.0):
        plan = dataclasses.replace(slow, hedge_s=times * alone_ms / 1e3)
        result = asked.run(plan, 0.5)
        after = f"{times * alone_ms:.0f} ms" if times < float("inf") else "never"
        lines.append({"hedged after": after, **_figures(result),
                      "hedged": result.hedged / result.arrived})  # fmt: skip
    return lines


def failures(asked: Asked) -> list[Line]:
    """Of twenty boxes a share dies at once, and comes back later; retried elsewhere or not."""
    lines: list[Line] = []
    for dead in (1, 4, 8):
        for retries in (0, 1):
            load = 0.6
            seconds = asked.seconds(20, load)
            deaths = tuple(Death(seconds * 0.3, each, seconds * 0.4) for each in range(dead))
            plan = Plan(asked.box, 20, retries=retries, detect_s=0.05, deaths=deaths)
            result = asked.run(plan, load)
            lines.append({"dead of 20": str(dead), "retries": str(retries), **_figures(result),
                          "failed": result.failed / result.arrived})  # fmt: skip
    return lines


def shards(asked: Asked) -> list[Line]:
    """Tables over several boxes: a request waits for the slowest of them."""
    lines: list[Line] = []
    for count in (1, 2, 4, 8, 16):
        plan = Plan(asked.box, 4, shards=count)
        smaller = dataclasses.replace(asked, requests=asked.requests // count)
        lines.append({"shards": str(count), **_figures(smaller.run(plan, 0.6))})
    return lines


def updates(asked: Asked) -> list[Line]:
    """Twenty boxes exchange rows, for as long as four full batches; how they share it out."""
    box, load = asked.box, 0.6
    hold_s = 4 * box.service.of(box.max_batch_rows)
    seconds = asked.seconds(20, load)
    gap_s = seconds * 0.8 / 20
    pieces = tuple(
        Hold(seconds * (0.3 + 0.02 * piece), each, hold_s / 20)
        for piece in range(20)
        for each in range(20)
    )
    ways = {
        "none": (),
        "all at once": tuple(Hold(seconds / 2, each, hold_s) for each in range(20)),
        "in turn": tuple(Hold(seconds * 0.1 + gap_s * each, each, hold_s) for each in range(20)),
        "all at once, in 20 pieces": pieces,
    }
    lines: list[Line] = []
    for name, holds in ways.items():
        for balancer in ("round robin", "power of two"):
            result = asked.run(Plan(box, 20, balancer=balancer, holds=holds), load)
            lines.append({"rows exchanged": name, "balancer": balancer, **_figures(result)})
    return lines


def size(asked: Asked) -> list[Line]:
    """The same load a box, and more and more boxes behind two choices.

    Requests grow with the boxes, so that each lasts as long.
    """
    lines: list[Line] = []
    for load in (0.6, 0.85):
        for count in (1, 10, 100, 1000):
            more = dataclasses.replace(asked, requests=max(20_000, count * asked.requests // 100))
            result = more.run(Plan(asked.box, count), load)
            lines.append({"boxes": str(count), "load": load, **_figures(result)})
    return lines


SCENARIOS: Mapping[str, Callable[[Asked], list[Line]]] = {
    "load": load_curve,
    "size": size,
    "balancers": balancers,
    "hedging": hedging,
    "failures": failures,
    "shards": shards,
    "updates": updates,
}


def _figures(result: Result) -> Line:
    return {
        "p50 ms": result.percentile_ms(50),
        "p99 ms": result.percentile_ms(99),
        "p99.9 ms": result.percentile_ms(99.9),
        "requests a batch": result.requests_a_batch,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.fleet scenarios",
        description=__doc__.split("\n\n")[0] if __doc__ else None,
    )
    add = parser.add_argument
    add("calibration", type=Path, help="file of calibrate --json")
    add("scenario", choices=SCENARIOS)
    add("--requests", type=int, default=60_000, help="how many to simulate")
    add("--seed", type=int, default=1)
    arguments = parser.parse_args(argv)
    calibration, document = read(arguments.calibration)
    asked = Asked(calibration.box(), calibration.rows, arguments.requests, arguments.seed)
    head = {
        "scenario": arguments.scenario,
        "requests": arguments.requests,
        "seed": arguments.seed,
        "capacity of one box, requests/s": round(asked.box.capacity(asked.rows), 1),
        "calibrated": document["manifest"]["time"],
    }
    print(json.dumps(head))
    print_table(SCENARIOS[arguments.scenario](asked))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
