"""What is left of the capacity, and of the deadlines, when more is asked than can be computed.

    python -m loadtest.lab.overload --backend cost
    python -m loadtest.lab.overload --backend torch_dlrm --artifact artifacts/reference --rows 100

Open loop, Poisson, every request with a timeout, at multiples of the capacity that a closed loop
reaches in the same round. Exit code 1 unless, at the highest load with admission by predicted
lateness, goodput is 90 % of the capacity and the accepted requests' p99 is within the timeout;
2 if the generator could not keep its schedule.
"""

import argparse
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from backends.fake import FakeOptions
from loadtest import bare, workload
from loadtest.lab import closed_loop, open_loop, setting, stats
from loadtest.lab.backends import CostBackend, Lent
from loadtest.lab.manifest import manifest
from loadtest.lab.overload_plot import plot
from loadtest.lab.tables import print_table
from scheduler.backend import Backend
from scheduler.engine import Engine
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement: at ``load`` times ``capacity`` (requests/s), predicting lateness or not."""

    load: float
    refuse_late: bool
    capacity: float
    valid: bool
    figures: dict[str, float]


async def capacity(
    engine: Engine, requests: Sequence[InferRequest], in_flight: int, seconds: float
) -> float:
    """Return the requests a second that a closed loop gets answered, after warming up."""
    ask = setting.asking(engine, requests)
    await closed_loop.run(ask, in_flight, seconds / 5)
    return (await closed_loop.run(ask, in_flight, seconds)).rate


async def run(arguments: argparse.Namespace) -> list[Run]:
    """Measure the capacity and every load with and without prediction, round after round."""
    backend, shape = _backend(arguments)
    requests = setting.make_requests(shape, arguments.rows, 500, arguments.seed)
    setting.settle_memory()
    runs: list[Run] = []
    async with (
        setting.serving(Lent(backend), SchedulerOptions(refuse_late=True)) as predicting,
        setting.serving(Lent(backend), SchedulerOptions(refuse_late=False)) as not_predicting,
    ):
        for seed in range(arguments.rounds):
            most = await capacity(predicting, requests, arguments.in_flight, arguments.seconds)
            for load, engine in itertools.product(arguments.loads, (predicting, not_predicting)):
                due_s = open_loop.poisson(load * most, arguments.seconds, arguments.seed + seed)
                tally = await open_loop.run(engine, requests, due_s, arguments.timeout_ms / 1e3)
                predicts = engine is predicting
                runs.append(Run(load, predicts, most, tally.valid, tally.figures()))
    return runs


def summary(runs: Sequence[Run]) -> list[dict[str, float | str]]:
    """Return one line a load, with and without prediction: medians over the rounds."""
    return [_line(load, predicts, alike) for load, predicts, alike in _alike(runs)]


def _alike(runs: Sequence[Run]) -> Iterator[tuple[float, bool, list[Run]]]:
    for predicts, load in itertools.product((True, False), sorted({run.load for run in runs})):
        alike = [run for run in runs if run.load == load and run.refuse_late == predicts]
        yield load, predicts, alike


def _line(load: float, predicts: bool, alike: Sequence[Run]) -> dict[str, float | str]:
    figures = {
        name: stats.median([run.figures[name] for run in alike]) for name in alike[0].figures
    }
    shares = [run.figures["goodput"] / run.capacity for run in alike]
    return {
        "refuse_late": "on" if predicts else "off",
        "load": load,
        "goodput/capacity": stats.median(shares),
        "least": min(shares),
        **figures,
    }


def verdict(lines: Sequence[dict[str, float | str]], timeout_ms: float) -> bool:
    """Return whether the highest load leaves goodput and the accepted's p99 where they must be."""
    predicting = [line for line in lines if line["refuse_late"] == "on"]
    worst = max(predicting, key=lambda line: float(line["load"]))
    return float(worst["goodput/capacity"]) >= 0.9 and float(worst["accepted_p99_ms"]) <= timeout_ms


def _backend(arguments: argparse.Namespace) -> tuple[Backend, workload.ModelShape]:
    if arguments.backend == "torch_dlrm":
        shape = workload.read_shape(arguments.artifact)
        return bare.load(arguments.artifact, arguments.backend), shape
    options = FakeOptions(lanes=arguments.lanes, max_batch_rows=arguments.max_batch_rows)
    backend = CostBackend(options, arguments.batch_ms / 1e3, arguments.row_us / 1e6)
    return backend, setting.FAKE_SHAPE


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--backend", choices=("cost", "torch_dlrm"), default="cost")
    add("--artifact", type=Path, default=Path("artifacts/reference"))
    add("--batch-ms", type=float, default=2.0, help="cost backend: what a batch takes")
    add("--row-us", type=float, default=50.0, help="cost backend: what each of its rows adds")
    add("--max-batch-rows", type=int, default=256, help="cost backend")
    add("--lanes", type=int, default=1, help="cost backend")
    add("--rows", type=int, default=10, help="of each request")
    add("--timeout-ms", type=float, default=50.0)
    add("--loads", type=float, nargs="+", default=[0.5, 0.8, 1.0, 1.5, 2.0, 3.0])
    add("--in-flight", type=int, default=64, help="closed loop, for the capacity")
    add("--seconds", type=float, default=2.0, help="each measurement")
    add("--rounds", type=int, default=5)
    add("--seed", type=int, default=0)
    add("--json", type=Path, help="write manifest and every run here")
    add("--svg", type=Path, help="draw the plot here")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, say whether the promise is kept."""
    arguments = _arguments(argv)
    about = manifest(arguments)
    runs = setting.run(run(arguments))
    lines = summary(runs)
    print(json.dumps(about))
    print_table(lines)
    most = stats.median([each.capacity for each in runs])
    kept, invalid = verdict(lines, arguments.timeout_ms), sum(not each.valid for each in runs)
    late = f"{invalid} of {len(runs)} runs invalid: the generator was late"
    print(f"capacity {most:.0f} requests/s; {late if invalid else f'kept: {kept}'}")
    if arguments.json:
        document = {
            "manifest": about,
            "capacity": most,
            "lines": lines,
            "runs": list(map(asdict, runs)),
        }
        arguments.json.write_text(json.dumps(_finite(document), indent=1) + "\n", encoding="utf-8")
    if arguments.svg:
        picture = plot(lines, most, arguments.timeout_ms, late if invalid else "")
        arguments.svg.write_text(picture, encoding="utf-8")
    return 2 if invalid else 0 if kept else 1


def _finite(value: object) -> object:
    """Return ``value`` with null for what JSON has no number for (p99 of never answered)."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    raise SystemExit(main())
