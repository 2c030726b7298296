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
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pyarrow as pa

from loadtest.lab import setting
from loadtest.lab.tables import print_table
from loadtest.lab.updates_folder import watch
from loadtest.lab.updates_poster import NAME, go_first, post, sink
from loadtest.lab.updates_rounds import (
    FOLDER,
    HTTP,
    NOTHING,
    SINK,
    TURN_S,
    TURNS,
    Latencies,
    Rounds,
    joined,
    lines,
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

    def __init__(self, engine: Engine, requests: Sequence[InferRequest], rounds: Rounds) -> None:
        self._engine, self._requests, self._rounds = engine, requests, rounds
        self.latencies_s: Latencies = {turn: {} for turn in rounds.turns}
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
        self.latencies_s = {turn: {} for turn in self._rounds.turns}

    async def _ask(self, due_s: float, number: int) -> None:
        await self._engine.infer(self._requests[number % len(self._requests)])
        if due_s % TURN_S > _SETTLING_S:
            turn, number = self._rounds.turn_at(due_s), self._rounds.round_at(due_s)
            self.latencies_s[turn].setdefault(str(number), []).append(time.monotonic() - due_s)


class Watching(Observer):
    """Keeps what was reported of updates."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self.updates: list[tuple[str, Updated]] = []  # with the turn in which they began

    def updated(self, record: Updated) -> None:
        """Keep it."""
        began_s = time.monotonic() - record.seconds
        self.updates.append((self._rounds.turn_at(began_s), record))


@contextlib.contextmanager
def _sending(
    rounds: Rounds, url: str, folder: Path, bodies: Sequence[bytes], every_s: float
) -> Iterator[None]:
    """Send within the block: to ``url``, ``folder`` and a process that does nothing, by turns."""
    spawn = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        urls = {HTTP: url, SINK: f"http://127.0.0.1:{port}/"}
        others = [
            spawn.Process(target=sink, args=(listener,), daemon=True),
            spawn.Process(target=post, args=(rounds, urls, folder, bodies, every_s), daemon=True),
        ]
        for other in others:
            other.start()
    try:
        yield
    finally:
        for other in others:
            other.terminate()


async def measure(arguments: argparse.Namespace) -> Latencies:
    """Return what requests took in each kind of turn."""
    rounds = Rounds(tuple(turn for turn in TURNS if turn in {NOTHING, *arguments.turns}))
    watching = Watching(rounds)
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
    requests = setting.make_requests(read_shape(arguments.artifact), arguments.rows, 200, 1)
    load = Load(engine, requests, rounds)
    setting.settle_memory()
    page = f"{url}/v1/models/{updates.spec.name}/embeddings"
    with (
        tempfile.TemporaryDirectory() as folder,
        _sending(rounds, page, Path(folder), bodies, rows / arguments.rows_per_s),
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
    _say(watching, rounds, lasted_s, used_s)
    return load.latencies_s


def _say(watching: Watching, rounds: Rounds, lasted_s: float, used_s: float) -> None:
    turns_s = lasted_s / len(rounds.turns)
    for way in {HTTP, FOLDER} & {*rounds.turns}:
        applied = [one for turn, one in watching.updates if (turn, one.outcome) == (way, "applied")]
        print(
            f"{way}: {sum(one.rows for one in applied) / turns_s:.0f} rows/s;"
            f" a delta took {1e3 * float(np.median([one.seconds for one in applied])):.1f} ms"
        )
    print(f"CPU {used_s / lasted_s:.2f} cores")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


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
    parser.add_argument(
        "--turns", nargs="+", choices=[HTTP, FOLDER, SINK], default=[HTTP, FOLDER, SINK],
        help="which of them beside nothing; fewer have more requests each",
    )  # fmt: skip
    parser.add_argument(
        "--keep", type=Path, help="a file for the rounds of several runs, to be read as one"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the intervals' draws")
    arguments = parser.parse_args(argv)
    if arguments.first:
        go_first()
    latencies_s = setting.run(measure(arguments))
    if arguments.keep:
        latencies_s = joined(arguments.keep, latencies_s)
    print_table(lines(latencies_s, arguments.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
