"""What embedding updates cost the requests that are served meanwhile.

    python -m loadtest.lab.updates artifacts/reference --backend native_dlrm

One process serves an open loop of requests, without a wire, and deltas that another process posts
to its admin listener: for half a second at that rate, for half a second none, and so on. So both
meet the same machine, however busy others keep it. The one that posts stands for another machine,
so it gives way to the server at once (SCHED_IDLE: at nice 19 the server's threads would wait for
the end of its time slice, 3 ms). A request belongs to the half in which it was
due; latencies count from there.
"""

import argparse
import asyncio
import io
import itertools
import multiprocessing
import os
import resource
import sys
import time
import urllib.request
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pyarrow as pa

from loadtest.lab import setting
from loadtest.lab.tables import print_table
from loadtest.workload import read_shape
from scheduler.backend import TableSpec
from scheduler.engine import Engine
from scheduler.observer import Observer, Updated
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest
from transports.http.admin import AdminOptions, AdminTransport

HALF_S = 0.5
# Requests that are due so soon after a half began may meet what the one before left.
_SETTLING_S = 0.05
_BODIES = 26
_NAME = "narsil-lab-%08d"
_TYPE = "application/vnd.apache.arrow.stream"


def updating(at_s: float) -> bool:
    """Return whether deltas are posted at that time, on the clock that all processes share."""
    return int(at_s / HALF_S) % 2 == 0


def post(url: str, bodies: Sequence[bytes], every_s: float) -> None:
    """Post ``bodies`` in turn, each under a new name, in every other half second; for ever."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    due_s = time.monotonic()
    for number in itertools.count(1):
        due_s = max(due_s + every_s, time.monotonic() - every_s)
        while not updating(due_s):
            due_s = (int(due_s / HALF_S) + 1) * HALF_S
        time.sleep(max(0.0, due_s - time.monotonic()))
        body = bodies[number % len(bodies)].replace((_NAME % 0).encode(), (_NAME % number).encode())
        request = urllib.request.Request(url, body, {"content-type": _TYPE})  # noqa: S310
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            answer.read()


def _body(random: np.random.Generator, tables: Sequence[TableSpec], rows: int) -> bytes:
    """Return a delta of ``rows`` rows, as many of each of ``tables``."""
    each, dim = rows // len(tables), tables[0].dim
    values = random.uniform(-0.4, 0.4, each * len(tables) * dim).astype(np.float32)
    chosen = [random.choice(table.rows, each, replace=False) for table in tables]
    table = pa.table(
        {
            "table": pa.array(
                [table.name for table in tables for _ in range(each)]
            ).dictionary_encode(),
            "row": np.concatenate(chosen),
            "values": pa.FixedSizeListArray.from_arrays(values, dim),
        }
    ).replace_schema_metadata({"narsil.id": _NAME % 0})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


class Load:
    """An open loop of requests at a steady rate; ``latencies_s`` are by half: with, without."""

    def __init__(self, engine: Engine, requests: Sequence[InferRequest]) -> None:
        self._engine, self._requests = engine, requests
        self.latencies_s: dict[bool, list[float]] = {True: [], False: []}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, rate: float, seconds: float) -> None:
        """Send for so long, and wait for the last answers."""
        begin_s = time.monotonic()
        for number in range(int(rate * seconds)):
            due_s = begin_s + number / rate
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            task = asyncio.create_task(self._ask(due_s, number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.gather(*self._tasks)

    async def _ask(self, due_s: float, number: int) -> None:
        await self._engine.infer(self._requests[number % len(self._requests)])
        if due_s % HALF_S > _SETTLING_S:
            self.latencies_s[updating(due_s)].append(time.monotonic() - due_s)


class Watching(Observer):
    """Keeps what was reported of updates."""

    def __init__(self) -> None:
        self.updates: list[Updated] = []

    def updated(self, record: Updated) -> None:
        """Keep it."""
        self.updates.append(record)


async def measure(arguments: argparse.Namespace) -> list[dict[str, float | str]]:
    """Return a line for each half, and one of ratios."""
    watching = Watching()
    engine = Engine(SchedulerOptions(), watching)
    plugin = entry_points(group="narsil.backends")[arguments.backend].load()
    await engine.load(plugin(plugin.Options(path=str(arguments.artifact))))
    engine.open()
    admin = AdminTransport(AdminOptions(port=0, updates=True))
    (url,) = await admin.start(engine)
    updates = engine.updates("")
    page = f"{url}/v1/models/{updates.spec.name}/embeddings"
    random, tables, rows = np.random.default_rng(0), updates.tables(), arguments.delta_rows
    chosen = [tables] if arguments.spread else [(table,) for table in tables]
    bodies = [_body(random, chosen[at % len(chosen)], rows) for at in range(_BODIES)]
    requests = setting.make_requests(read_shape(arguments.artifact), arguments.rows, 200, 1)
    setting.settle_memory()
    every_s = rows / arguments.rows_per_s
    poster = multiprocessing.get_context("spawn").Process(
        target=post, args=(page, bodies, every_s), daemon=True
    )
    load = Load(engine, requests)
    poster.start()
    while not watching.updates:  # it has imported what it needs, the server found its library
        await load.run(arguments.rate, 2.0)
    load.latencies_s = {True: [], False: []}
    watching.updates.clear()
    used_s, began_s = _cpu_s(), time.monotonic()
    await load.run(arguments.rate, arguments.seconds)
    poster.terminate()
    lasted_s, used_s = time.monotonic() - began_s, _cpu_s() - used_s
    await admin.stop(0.0)
    await engine.close(1.0)
    applied = [one for one in watching.updates if one.outcome == "applied"]
    print(
        f"{sum(one.rows for one in applied) / (lasted_s / 2):.0f} rows/s while updating;"
        f" a delta took {1e3 * float(np.median([one.seconds for one in applied])):.1f} ms;"
        f" CPU {used_s / lasted_s:.2f} cores"
    )
    return _lines(load.latencies_s)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _lines(latencies_s: dict[bool, list[float]]) -> list[dict[str, float | str]]:
    names = {"p50 ms": 50, "p90 ms": 90, "p99 ms": 99, "p99.9 ms": 99.9}
    found = {
        half: {name: 1e3 * float(np.percentile(taken, at)) for name, at in names.items()}
        for half, taken in latencies_s.items()
    }
    ratios = {name: found[True][name] / found[False][name] for name in names}
    counts = {half: float(len(taken)) for half, taken in latencies_s.items()}
    return [
        {"": "no updates", "requests": counts[False], **found[False]},
        {"": "updates", "requests": counts[True], **found[True]},
        {"": "ratio", "requests": "", **ratios},
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--backend", default="torch_dlrm")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--rows", type=int, default=100, help="rows a request")
    parser.add_argument("--rows-per-s", type=float, default=100_000.0, help="rows updated")
    parser.add_argument("--delta-rows", type=int, default=10_000)
    parser.add_argument("--spread", action="store_true", help="each delta over all tables")
    parser.add_argument("--seconds", type=float, default=60.0)
    print_table(setting.run(measure(parser.parse_args(argv))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
