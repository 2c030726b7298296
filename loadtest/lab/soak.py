"""Whether anything creeps: load for a long time, and a straight line through what it held.

    python -m loadtest.lab.soak --minutes 20

Closed loop of mixed sizes, some larger than a batch; every request has a deadline, one in ten is
cancelled, and every 20 s a fresh backend takes over. Every answer is compared with the right one.
Exit code 1 if a score is wrong, if a request fails or is never answered, or if throughput, memory,
timers, tasks or threads are not flat.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from loadtest.lab import setting, stats
from loadtest.lab.manifest import manifest
from loadtest.lab.soak_load import Outcomes, Sample, Soak, make_backend, make_cases
from loadtest.lab.soak_loop import CountingLoop
from loadtest.lab.tables import print_table

# How much a figure may change over the whole run, as a share of its median: the counts are of one
# instant, so they vary more from one sample to the next.
FLAT = {"answered_per_s": 0.10, "rss_mib": 0.05, "timers": 0.20, "tasks": 0.20, "threads": 0.20}
WARM_UP = 0.1  # share of the samples that are left out at first


async def run(arguments: argparse.Namespace) -> tuple[list[Sample], Outcomes]:
    """Load an engine for as long as asked; return what was seen and what the requests came to."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountingLoop)
    cases = make_cases(arguments.seed)
    async with setting.serving(make_backend()) as engine:
        soak = Soak(engine, cases, arguments.seed, time.monotonic() + 60 * arguments.minutes)
        async with asyncio.TaskGroup() as group:
            sampling = group.create_task(soak.sample(loop, arguments.sample_s))
            group.create_task(soak.swap(arguments.swap_s))
            for _ in range(arguments.in_flight):
                group.create_task(soak.worker())
    return sampling.result(), soak.outcomes


def slopes(samples: Sequence[Sample]) -> list[dict[str, float | str]]:
    """Return a line for each figure: how it changes, and whether that counts as flat."""
    kept = [asdict(sample) for sample in samples[int(WARM_UP * len(samples)) :]]
    at_s = [sample["at_s"] for sample in kept]
    lines: list[dict[str, float | str]] = []
    for name, most in FLAT.items():
        values = [float(sample[name]) for sample in kept]
        slope, usual = stats.theil_sen(at_s, values), stats.median(values)
        change = slope * (at_s[-1] - at_s[0]) / usual if usual else 0.0
        lines.append(
            {
                "figure": name,
                "median": usual,
                "least": min(values),
                "most": max(values),
                "slope per hour": 3600 * slope,
                "change over the run": change,
                "flat": "yes" if abs(change) <= most else "no",
            }
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print what became of the requests and how everything changed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--minutes", type=float, default=20.0)
    add("--in-flight", type=int, default=32)
    add("--swap-s", type=float, default=20.0, help="between one backend and the next")
    add("--sample-s", type=float, default=5.0, help="between one look and the next")
    add("--seed", type=int, default=0)
    add("--json", type=Path, help="write manifest, samples and lines here")
    arguments = parser.parse_args(argv)
    about = manifest(arguments)
    samples, outcomes = setting.run(run(arguments), CountingLoop)
    lines = slopes(samples)
    print(json.dumps(about))
    print_table(lines)
    print(f"requests: {dict(outcomes.counts)}; swaps: {outcomes.swaps}")
    if outcomes.wrong:
        print(f"must not be: {dict(outcomes.wrong)}")
    if arguments.json:
        document = {"manifest": about, "lines": lines, "samples": list(map(asdict, samples))}
        arguments.json.write_text(json.dumps(document) + "\n", encoding="utf-8")
    return 1 if outcomes.wrong or any(line["flat"] == "no" for line in lines) else 0


if __name__ == "__main__":
    raise SystemExit(main())
