"""What p99 by p50 an open loop can have, by load and by the order of service: a simulation.

    python -m loadtest.lab.tail

One processor computes batches of what waits, as ``scheduler/queue.py`` takes them: all of it, or
equal shares of the rows once it would take longer than is enough. Requests are those of the bars'
mix and arrive at random, at a share of what a closed loop gets by batches of eight.
"""

import argparse
import heapq
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from loadtest.bars import MIX
from loadtest.lab.open_loop import poisson
from loadtest.lab.tables import print_table
from loadtest.workload import parse_rows
from scheduler.waiting import CROWDED

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor seconds of a batch, of a request in it and of a row; measured, decision 0061."""

    batch_s: float = 300e-6
    request_s: float = 140e-6
    row_s: float = 13e-6

    def capacity(self, rows: float, batch: int = 8) -> float:
        """Return the requests a second of ``rows`` rows on average, so many a batch."""
        return batch / (self.batch_s + batch * (self.request_s + rows * self.row_s))


@dataclass(frozen=True, slots=True)
class Rule:
    """Who goes first, when a batch is large enough, and how many rows of a request at a time."""

    order: str = "first come"
    enough_s: float = 4e-3
    slice_rows: int = sys.maxsize


# By when a request came and its rows: the least goes first.
ORDERS: Mapping[str, Callable[[float, int], tuple[float, float]]] = MappingProxyType(
    {
        "first come": lambda came_s, rows: (came_s, 0),
        "small first": lambda came_s, rows: (rows, came_s),
        "large first": lambda came_s, rows: (-rows, came_s),
    }
)


class _Queue:
    """What waits; ``left`` are the rows of each request that have not been computed."""

    def __init__(self, rows: Sequence[int], rule: Rule) -> None:
        self.left, self.waiting = list(rows), 0
        self._rows, self._rule = rows, rule
        self._heap: list[tuple[tuple[float, float], int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, number: int, came_s: float) -> None:
        """Let a request wait, as one that came at ``came_s``."""
        key = ORDERS[self._rule.order](came_s, self._rows[number])
        heapq.heappush(self._heap, (key, number))

    def take(self, costs: Costs, now_s: float) -> tuple[list[int], float]:
        """Return whose last rows the next batch has, and when it is done."""
        shares = (costs.batch_s + costs.row_s * self.waiting) / self._rule.enough_s
        enough = self.waiting / (max(1.0, shares) if shares < CROWDED else 1.0)
        end_s, taken = now_s + costs.batch_s, 0
        done: list[int] = []
        cut: list[int] = []
        while self._heap and taken < enough:
            _, number = heapq.heappop(self._heap)
            rows = min(self.left[number], self._rule.slice_rows)
            begun = self.left[number] < self._rows[number]
            end_s += costs.row_s * rows + (0.0 if begun else costs.request_s)
            self.left[number] -= rows
            taken += rows
            (cut if self.left[number] else done).append(number)
        self.waiting -= taken
        for number in cut:  # behind whoever came meanwhile
            self.push(number, end_s)
        return done, end_s


def simulate(costs: Costs, rule: Rule, came_s: Sequence[float], rows: Sequence[int]) -> Floats:
    """Return how long each request took (seconds); ``came_s`` in order."""
    queue, done_s, now_s, next_ = _Queue(rows, rule), np.zeros(len(rows)), 0.0, 0
    while next_ < len(rows) or queue:
        if not queue:
            now_s = max(now_s, came_s[next_])
        while next_ < len(rows) and came_s[next_] <= now_s:
            queue.push(next_, came_s[next_])
            queue.waiting += rows[next_]
            next_ += 1
        done, now_s = queue.take(costs, now_s)
        done_s[done] = now_s
    took_s: Floats = done_s - np.asarray(came_s)
    return took_s


def line_of(load: float, rule: Rule, rows: Sequence[int], took_s: Floats) -> dict[str, float | str]:
    """Return what is told of one setting."""
    sizes, took_ms = np.asarray(rows), took_s * 1e3
    small, large = took_ms[sizes == sizes.min()], took_ms[sizes == sizes.max()]
    p50, p99 = np.percentile(took_ms, [50, 99])
    return {
        "load": f"{load:.0%}",
        "order": rule.order,
        "a batch is enough at, ms": rule.enough_s * 1e3,
        "rows at a time": "all" if rule.slice_rows == sys.maxsize else str(rule.slice_rows),
        "p50 ms": float(p50),
        "p99 ms": float(p99),
        "p99 / p50": float(p99 / p50),
        f"p99 ms, {sizes.min()} row": float(np.percentile(small, 99)),
        f"p99 ms, {sizes.max()} rows": float(np.percentile(large, 99)),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=80_000, help="a line (default: 80000)")
    count = parser.parse_args(argv).requests
    costs, kinds = Costs(), parse_rows(MIX)
    sizes, weights = np.array(kinds).T
    chances = weights / weights.sum()
    rows = np.random.default_rng(1).choice(sizes.astype(int), count, p=chances).tolist()
    most = costs.capacity(float(sizes @ chances))
    settings = [(load, Rule()) for load in (0.02, 0.05, 0.2, 0.35, 0.5, 0.7, 0.8, 0.9)]
    settings += [
        (0.7, Rule(order, enough_s)) for order in ORDERS for enough_s in (1e-3, 2e-3, 4e-3, 1.0)
    ]
    settings += [(0.7, Rule(slice_rows=rows)) for rows in (10, 25, 50)]
    settings += [(0.9, Rule("small first", 2e-3))]
    lines = []
    for load, rule in settings:
        came_s = poisson(load * most, 2 * count / (load * most), seed=1)[:count].tolist()
        lines.append(line_of(load, rule, rows, simulate(costs, rule, came_s, rows)))
    print_table(lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
