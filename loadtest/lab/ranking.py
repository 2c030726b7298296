"""What a context given once saves: bytes on the wire and microseconds of decoding.

    python -m loadtest.lab.ranking

A model of the reference preset's shape (13 dense features, 26 id features); the context has 8 and
16 of them, some of the latter histories of many ids. Both forms of a request are decoded to the
same arrays, which is checked first, and are measured in turn; ``us`` is the median of the rounds.
"""

import argparse
import json
import time
from collections.abc import Sequence

from backends.fake import FakeBackend, FakeOptions
from loadtest.lab import setting, stats
from loadtest.lab.manifest import manifest
from loadtest.lab.ranking_bodies import Body, Shape, bodies, draw_parts
from loadtest.lab.tables import print_table
from scheduler.types import InferRequest, ModelSpec


def reference_spec(max_rows: int) -> ModelSpec:
    """Return a model of the reference preset's shape that takes ``max_rows`` in one request."""
    options = FakeOptions(
        dense_features=13, sparse_features=26, table_rows=100_000, max_batch_rows=max_rows
    )
    return FakeBackend(options).spec


def check_same(one: InferRequest, other: InferRequest) -> None:
    """Raise ValueError unless both have the same arrays, bit for bit."""
    for name, array in one.inputs.items():
        found = other.inputs[name]
        if (found.shape, found.tobytes()) != (array.shape, array.tobytes()):
            raise ValueError(f"{name} differs")


def decode_us(body: Body, seconds: float) -> float:
    """Return what one decoding takes, repeated for about ``seconds``."""
    count, begun_s = 0, time.perf_counter()
    while True:
        body.decode()
        count += 1
        elapsed_s = time.perf_counter() - begun_s
        if elapsed_s >= seconds:
            return 1e6 * elapsed_s / count


def line(
    name: str, rows: int, forms: tuple[Body, Body], arguments: argparse.Namespace
) -> dict[str, float | str]:
    """Measure one form of a request of ``rows`` candidates."""
    check_same(*(form.decode() for form in forms))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(arguments.rounds):
        for found, form in zip(times, forms, strict=True):
            found.append(decode_us(form, arguments.seconds))
    spelled_out, with_context = (len(form.content) for form in forms)
    return {
        "candidates": str(rows),
        "form": name,
        "bytes": str(spelled_out),
        "with context": str(with_context),
        "saved": f"{1 - with_context / spelled_out:.0%}",
        "us": stats.median(times[0]),
        "us with context": stats.median(times[1]),
        "ratio": stats.median_ratio(times[1], times[0]),
    }


def table(arguments: argparse.Namespace) -> list[dict[str, float | str]]:
    """Return a line for each number of candidates and form."""
    shape = Shape(histories=arguments.histories, history_ids=arguments.history_ids)
    spec = reference_spec(max(arguments.candidates))
    lines = []
    for rows in arguments.candidates:
        for name, forms in bodies(draw_parts(spec, rows, shape, arguments.seed)).items():
            lines.append(line(name, rows, forms, arguments))
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the manifest and the table (``--json``: the lines as JSON)."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--candidates", type=int, nargs="+", default=[10, 100, 1000])
    add("--histories", type=int, default=4, help="features of the context with many ids")
    add("--history-ids", type=int, default=50, help="ids in each of them")
    add("--seconds", type=float, default=0.05, help="each measurement")
    add("--rounds", type=int, default=9, help="each measures both forms in turn")
    add("--seed", type=int, default=0)
    add("--json", action="store_true")
    arguments = parser.parse_args(argv)
    setting.settle_memory()
    print(json.dumps(manifest(arguments)))
    lines = table(arguments)
    if arguments.json:
        print(json.dumps(lines))
    else:
        print_table(lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
