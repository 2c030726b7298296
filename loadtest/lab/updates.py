"""What embedding updates cost the requests that are served meanwhile.

    python -m loadtest.lab.updates artifacts/reference --backend native_dlrm

One process serves an open loop of requests, without a wire, and in turns of half a second: nothing
else; deltas that another process posts to its admin listener; deltas that it puts into a folder;
nothing else, while it posts the same to a third process that throws it away (what a client on the
same machine costs, which the server has no part in). So all meet the same machine, however busy
others keep it; with --first others on it have no turn while this wants one. A request belongs to
the turn in which it was due; latencies count from there. Intervals are of 95 %, by drawing rounds
of one turn each.
"""

import argparse
import asyncio
import contextlib
import io
import multiprocessing
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from loadtest.lab import setting
from loadtest.lab.tables import print_table
from loadtest.lab.updates_folder import watch
from loadtest.lab.updates_poster import (
    FOLDER,
    HTTP,
    NAME,
    NOTHING,
    SINK,
    TURN_S,
    TURNS,
    go_first,
    post,
    round_at,
    sink,
    turn_at,
)
from loadtest.workload import read_shape
from scheduler.backend import TableSpec
from scheduler.engine import Engine
from scheduler.observer import Observer, Updated
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest
from transports.http.admin import AdminOptions, AdminTransport

# Requests that are due so soon after a turn began may meet what the one before left.
_SETTLING_S = 0.05
_BODIES = 26
_PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}
_RESAMPLES = 1000


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
    ).replace_schema_metadata({"narsil.id": NAME % 0})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


class Load:
    """An open loop of requests at a steady rate; ``latencies_s`` are by turn and round."""

    def __init__(self, engine: Engine, requests: Sequence[InferRequest]) -> None:
        self._engine, self._requests = engine, requests
        self.latencies_s: dict[str, dict[int, list[float]]] = {turn: {} for turn in TURNS}
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

    def forget(self) -> None:
        """Let what was measured so far count no more."""
        self.latencies_s = {turn: {} for turn in TURNS}

    async def _ask(self, due_s: float, number: int) -> None:
        await self._engine.infer(self._requests[number % len(self._requests)])
        if due_s % TURN_S > _SETTLING_S:
            latencies_s = self.latencies_s[turn_at(due_s)].setdefault(round_at(due_s), [])
            latencies_s.append(time.monotonic() - due_s)


class Watching(Observer):
    """Keeps what was reported of updates."""

    def __init__(self) -> None:
        self.updates: list[tuple[str, Updated]] = []  # with the turn in which they began

    def updated(self, record: Updated) -> None:
        """Keep it."""
        self.updates.append((turn_at(time.monotonic() - record.seconds), record))


@contextlib.contextmanager
def _sending(url: str, folder: Path, bodies: Sequence[bytes], every_s: float) -> Iterator[None]:
    """Send within the block: to ``url``, ``folder`` and a process that does nothing, by turns."""
    spawn = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        urls = {HTTP: url, SINK: f"http://127.0.0.1:{port}/"}
        others = [
            spawn.Process(target=sink, args=(listener,), daemon=True),
            spawn.Process(target=post, args=(urls, folder, bodies, every_s), daemon=True),
        ]
        for other in others:
            other.start()
    try:
        yield
    finally:
        for other in others:
            other.terminate()


async def measure(arguments: argparse.Namespace) -> list[dict[str, float | str]]:
    """Return a line for each kind of turn."""
    watching = Watching()
    engine = Engine(SchedulerOptions(), watching)
    plugin = entry_points(group="narsil.backends")[arguments.backend].load()
    await engine.load(plugin(plugin.Options(path=str(arguments.artifact))))
    engine.open()
    admin = AdminTransport(AdminOptions(port=0, updates=True))
    (url,) = await admin.start(engine)
    updates = engine.updates("")
    random, tables, rows = np.random.default_rng(0), updates.tables(), arguments.delta_rows
    chosen = [tables] if arguments.spread else [(table,) for table in tables]
    bodies = [_body(random, chosen[at % len(chosen)], rows) for at in range(_BODIES)]
    load = Load(
        engine, setting.make_requests(read_shape(arguments.artifact), arguments.rows, 200, 1)
    )
    setting.settle_memory()
    page = f"{url}/v1/models/{updates.spec.name}/embeddings"
    with (
        tempfile.TemporaryDirectory() as folder,
        _sending(page, Path(folder), bodies, rows / arguments.rows_per_s),
    ):
        watching_folder = asyncio.create_task(watch(engine, Path(folder)))
        while not watching.updates:  # it has imported what it needs, the server found its library
            await load.run(arguments.rate, 3.0)
        load.forget()
        watching.updates.clear()
        used_s, began_s = _cpu_s(), time.monotonic()
        await load.run(arguments.rate, arguments.seconds)
        lasted_s, used_s = time.monotonic() - began_s, _cpu_s() - used_s
        watching_folder.cancel()
    await admin.stop(0.0)
    await engine.close(1.0)
    _say(watching, lasted_s, used_s)
    return _lines(load.latencies_s, arguments.seed)


def _say(watching: Watching, lasted_s: float, used_s: float) -> None:
    for way in (HTTP, FOLDER):
        applied = [one for turn, one in watching.updates if (turn, one.outcome) == (way, "applied")]
        print(
            f"{way}: {sum(one.rows for one in applied) / (lasted_s / len(TURNS)):.0f} rows/s;"
            f" a delta took {1e3 * float(np.median([one.seconds for one in applied])):.1f} ms"
        )
    print(f"CPU {used_s / lasted_s:.2f} cores")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _lines(
    latencies_s: Mapping[str, Mapping[int, Sequence[float]]], seed: int
) -> list[dict[str, float | str]]:
    """Return the percentiles of each kind of turn, and their ratios to those of nothing."""
    whole = sorted(set.intersection(*(set(by_round) for by_round in latencies_s.values())))
    taken = {
        turn: [np.asarray(by_round[each]) for each in whole]
        for turn, by_round in latencies_s.items()
    }
    draws = np.random.default_rng(seed).integers(0, len(whole), (_RESAMPLES, len(whole)))
    drawn = {
        turn: np.array([_percentiles([rounds[at] for at in draw]) for draw in draws])
        for turn, rounds in taken.items()
    }
    lines: list[dict[str, float | str]] = []
    for turn, rounds in taken.items():
        line: dict[str, float | str] = {"": turn, "requests": float(sum(map(len, rounds)))}
        here, bases = _percentiles(rounds), _percentiles(taken[NOTHING])
        ratios = np.percentile(drawn[turn] / drawn[NOTHING], [2.5, 97.5], axis=0)
        for at, name in enumerate(_PERCENTILES):
            line[f"{name} ms"] = 1e3 * float(here[at])
            low, high = ratios[:, at]
            line[f"{name} ratio"] = f"x{here[at] / bases[at]:.2f} ({low:.2f} to {high:.2f})"
        lines.append(line)
    return lines


def _percentiles(rounds: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    return np.percentile(np.concatenate(rounds), list(_PERCENTILES.values()))


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
    parser.add_argument("--first", action="store_true", help="before all others here; needs root")
    parser.add_argument("--seed", type=int, default=0, help="of the intervals' draws")
    arguments = parser.parse_args(argv)
    if arguments.first:
        go_first()
    print_table(setting.run(measure(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
