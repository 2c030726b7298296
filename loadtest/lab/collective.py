"""Round trips of the collective transport beside gRPC's, and shared memory's, one at a time.

    python -m loadtest.lab.collective --rows 1 100 10000 --rounds 5 --seconds 1

One ``narsil serve`` with the fake backend; all clients are in this process and take turns within
a round; each writes its message, or its memory, anew for every request. ``cpu us`` is the
processor time of a request: of the server with all its processes, and of the client, which for
gloo has a thread that polls. Ratios are the medians of each round's.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import numpy as np

from loadtest.lab import stats
from loadtest.lab.collective_shared import PREFIX, Ask, Inputs, shared
from loadtest.lab.manifest import manifest
from loadtest.lab.tables import print_table
from loadtest.workload import ModelShape, draw
from scheduler.types import Array
from transports.codecs.predictor_client import decode_response, encode_request
from transports.collective.client import CollectiveClient

DENSE, FEATURES, TABLE_ROWS = 13, 26, 1000
_PREDICT = "/predictor.Predictor/Predict"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_WARM_UP = 10
_ROW_BYTES = 4 * DENSE + 16 * FEATURES + 4


@dataclass(frozen=True, slots=True)
class Spent:
    """What one round's requests took each: seconds by the clock and by processors."""

    trip_s: float
    server_s: float
    client_s: float


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 100, 10_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args(argv)
    print(json.dumps(manifest(arguments)))
    lines: list[dict[str, float | str]] = []
    most = max(arguments.rows)
    with _served(most) as (pid, urls), _asked(urls, most) as contestants:
        for rows in arguments.rows:
            inputs = requests(rows)
            check(contestants, inputs)
            rounds = [
                {name: measured(ask, inputs, arguments.seconds, pid) for name, ask in contestants}
                for _ in range(arguments.rounds)
            ]
            lines += summary(rows, sum(array.nbytes for array in inputs.values()), rounds)
    print_table(lines)


def requests(rows: int) -> Inputs:
    """Return one request of a DLRM of the reference's shape."""
    features = tuple(f"cat_{number}" for number in range(FEATURES))
    shape = ModelShape(DENSE, features, (TABLE_ROWS,) * FEATURES)
    return draw(shape, rows, np.random.default_rng(rows))


def check(contestants: Sequence[tuple[str, Ask]], inputs: Inputs) -> None:
    """Raise ValueError unless all give the same scores: right before fast."""
    (_, first), *others = contestants
    scores = first(inputs)
    for name, ask in others:
        if not np.array_equal(ask(inputs), scores):
            raise ValueError(f"{name} has other scores")


def measured(ask: Ask, inputs: Inputs, seconds: float, server: int) -> Spent:
    """Ask again and again for about ``seconds``; return what a request took."""
    for _ in range(_WARM_UP):
        ask(inputs)
    trips = []
    before, client = tree_cpu_s(server), time.process_time()
    end_s = time.perf_counter() + seconds
    while (begun_s := time.perf_counter()) < end_s:
        ask(inputs)
        trips.append(time.perf_counter() - begun_s)
    spent = tree_cpu_s(server) - before, time.process_time() - client
    return Spent(stats.median(trips), spent[0] / len(trips), spent[1] / len(trips))


def summary(
    rows: int, size_bytes: int, rounds: Sequence[Mapping[str, Spent]]
) -> Iterator[dict[str, float | str]]:
    """Yield a line a contestant; the first is what others are compared with."""
    by_name: defaultdict[str, list[Spent]] = defaultdict(list)
    for one in rounds:
        for name, spent in one.items():
            by_name[name].append(spent)
    base = next(iter(by_name.values()))
    for name, spents in by_name.items():
        trip_s = stats.median([spent.trip_s for spent in spents])
        yield {
            "rows": str(rows),
            "KB": size_bytes / 1e3,
            "wire": name,
            "p50 us": trip_s * 1e6,
            "MB/s": size_bytes / trip_s / 1e6,
            "server cpu us": stats.median([spent.server_s for spent in spents]) * 1e6,
            "client cpu us": stats.median([spent.client_s for spent in spents]) * 1e6,
            "x p50": stats.median_ratio([s.trip_s for s in spents], [s.trip_s for s in base]),
            "x cpu": stats.median_ratio(
                [s.server_s + s.client_s for s in spents], [s.server_s + s.client_s for s in base]
            ),
        }


def tree_cpu_s(pid: int) -> float:
    """Return the processor time, so far, of a process and all its descendants that live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except FileNotFoundError:  # it has ended meanwhile
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return own + sum(tree_cpu_s(int(child)) for child in children)


@contextlib.contextmanager
def _served(rows: int) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Run a server; yield its process and its address by transport."""
    command = [
        str(Path(sys.executable).with_name("narsil")), "serve", "--backend", "fake",
        f"--backend-dense-features={DENSE}", f"--backend-sparse-features={FEATURES}",
        f"--backend-table-rows={TABLE_ROWS}", f"--backend-max-batch-rows={rows}",
        "--scheduler-max-batch-ids=100000000", "--backend-remembered-batches=0",
        "--transports=grpc,collective", "--grpc-port=0", "--collective-port=0",
        "--server-drain-delay-s=0", "--log-level=warning", f"--server-shared-memory=/{PREFIX}",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
        assert process.stdout is not None
        urls: dict[str, str] = {}
        while len(urls) < 2 and (line := process.stdout.readline()):
            urls.update(re.findall(r"^  (grpc|collective) +(\S+)", line))
        try:
            yield process.pid, urls
        finally:
            process.terminate()
            process.communicate()


@contextlib.contextmanager
def _asked(urls: Mapping[str, str], rows: int) -> Iterator[list[tuple[str, Ask]]]:
    """Connect every client, for requests of up to ``rows``."""
    unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with (
        grpc.insecure_channel(urlsplit(urls["grpc"]).netloc, unlimited) as channel,
        CollectiveClient(urls["collective"]) as client,
        shared(channel, 4096 + rows * _ROW_BYTES) as over_memory,
    ):
        predict = channel.unary_unary(_PREDICT)

        def over_grpc(inputs: Inputs) -> Array:
            rows = len(inputs["float_features"])
            return decode_response(predict(encode_request(rows, inputs)))["default"]

        def over_gloo(inputs: Inputs) -> Array:
            return np.asarray(client.predict(inputs)["default"].numpy())

        yield [("grpc", over_grpc), ("collective", over_gloo), ("grpc, shared memory", over_memory)]


if __name__ == "__main__":
    main()
