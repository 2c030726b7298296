"""What a context given once saves: bytes on the wire, microseconds of decoding and of a round trip.

    python -m loadtest.lab.ranking

A model of the reference preset's shape (13 dense features, 26 id features); the context has 8 and
16 of them, some of the latter histories of many ids. Both forms of a request are decoded to the
same arrays, which is checked first, and are measured in turn. ``a -> b``: spelled out -> with a
context, the quickest of the rounds, since a busy machine only ever adds; a ratio is the median of
the rounds' ratios. A round trip is over HTTP/1.1 on the loopback, with a model that computes
nothing but sums.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence

from backends.fake import FakeBackend, FakeOptions
from loadtest.lab import setting, stats
from loadtest.lab.bodies import Body
from loadtest.lab.manifest import manifest
from loadtest.lab.ranking_bodies import Shape, bodies, draw_parts
from loadtest.lab.ranking_trips import Connection, connected, trip_us
from loadtest.lab.tables import print_table
from scheduler.types import InferRequest


def reference_backend(max_rows: int) -> FakeBackend:
    """Return a model of the reference preset's shape that takes ``max_rows`` in one request."""
    return FakeBackend(
        FakeOptions(
            dense_features=13, sparse_features=26, table_rows=100_000, max_batch_rows=max_rows
        )
    )


def check_same(one: InferRequest, other: InferRequest) -> None:
    """Raise ValueError unless both have the same arrays, bit for bit."""
    for name, array in one.inputs.items():
        found = other.inputs[name]
        if (found.shape, found.tobytes()) != (array.shape, array.tobytes()):
            raise ValueError(f"{name} differs")


def call_us(call: Callable[[], object], seconds: float) -> float:
    """Return what one ``call`` takes, repeated for about ``seconds``."""
    count, begun_s = 0, time.perf_counter()
    while True:
        call()
        count += 1
        elapsed_s = time.perf_counter() - begun_s
        if elapsed_s >= seconds:
            return 1e6 * elapsed_s / count


Forms = tuple[Body, Body]


async def measure(
    forms: Forms, connection: Connection, arguments: argparse.Namespace
) -> dict[str, float | str]:
    """Return the figures of one request: spelled out, with a context, and the ratio."""
    check_same(*(form.decode() for form in forms))
    decodes: tuple[list[float], list[float]] = ([], [])
    trips: tuple[list[float], list[float]] = ([], [])
    for _ in range(arguments.rounds):
        for number, form in enumerate(forms):
            decodes[number].append(call_us(form.decode, arguments.seconds))
            if form.path:
                trips[number].append(await trip_us(connection, form, arguments.seconds))
    return {
        "bytes": " -> ".join(str(len(form.content)) for form in forms),
        "decode us": _quickest(decodes),
        "ratio": stats.median_ratio(decodes[1], decodes[0]),
        "round trip us": _quickest(trips),
        "its ratio": stats.median_ratio(trips[1], trips[0]) if trips[0] else "-",
    }


def _quickest(pair: tuple[list[float], list[float]]) -> str:
    return " -> ".join(f"{min(values):.0f}" for values in pair) if pair[0] else "-"


async def table(arguments: argparse.Namespace) -> list[dict[str, float | str]]:
    """Return a line for each number of candidates and form."""
    shape = Shape(histories=arguments.histories, history_ids=arguments.history_ids)
    backend = reference_backend(max(arguments.candidates))
    lines = []
    async with connected(backend) as connection:
        for rows in arguments.candidates:
            parts = draw_parts(backend.spec, rows, shape, arguments.seed)
            for name, forms in bodies(parts).items():
                figures = await measure(forms, connection, arguments)
                lines.append({"candidates": str(rows), "form": name, **figures})
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the manifest and the table (``--json``: the lines as JSON)."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--candidates", type=int, nargs="+", default=[10, 100, 1000])
    add("--histories", type=int, default=4, help="features of the context with many ids")
    add("--history-ids", type=int, default=50, help="ids in each of them")
    add("--seconds", type=float, default=0.005, help="each measurement")
    add("--rounds", type=int, default=60, help="each measures both forms in turn")
    add("--seed", type=int, default=0)
    add("--json", action="store_true")
    arguments = parser.parse_args(argv)
    print(json.dumps(manifest(arguments)))
    lines = setting.run(table(arguments))
    if arguments.json:
        print(json.dumps(lines))
    else:
        print_table(lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
