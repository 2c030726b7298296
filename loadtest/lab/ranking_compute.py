"""What a context saves where a model is computed, and of the whole request over HTTP/1.1.

    python -m loadtest.lab.ranking_compute artifacts/reference native_dlrm:compiled torch_dlrm:lean

The context has all dense features and some id features, or some dense features with ``--dense``.
The same request is computed spelled out and with what its rows share said, in turn; both scores are
compared first. ``us`` is the thread's CPU time of gathering and computing, the quickest of the
rounds; ratios are medians of the rounds'. A round trip is of the Open Inference Protocol's binary
tensors, spelled out and with a context.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from loadtest.candidates import load_one
from loadtest.lab import setting, stats
from loadtest.lab.bodies import Body, binary_body
from loadtest.lab.manifest import manifest
from loadtest.lab.ranking_bodies import Parts, Shape, draw_parts
from loadtest.lab.ranking_trips import Connection, connected, trip_us
from loadtest.lab.tables import print_table
from scheduler.backend import Backend
from scheduler.types import Batch, InferRequest

Pair = tuple[list[float], list[float]]


def cpu_us(call: Callable[[], object], seconds: float) -> float:
    """Return the CPU time of this thread that one ``call`` takes, repeated for ``seconds``."""
    count, begun_s, begun_cpu_s = 0, time.perf_counter(), time.thread_time()
    while not count or time.perf_counter() < begun_s + seconds:
        call()
        count += 1
    return 1e6 * (time.thread_time() - begun_cpu_s) / count


def computing(backend: Backend, request: InferRequest) -> Callable[[], object]:
    """Return what gathers and computes ``request`` as a batch of its own."""
    checked = backend.check(request)
    batch = Batch((checked.request if checked else request,))

    def compute() -> object:
        return backend.prepare(batch)()

    return compute


def written(parts: Parts) -> tuple[Body, Body]:
    """Return the request spelled out and with a context, in TorchRec's tensors."""
    own = {name: array for name, array in parts.candidates.items() if array.size}
    context = {f"context.{name}": array for name, array in parts.context.items()}
    return binary_body(parts.whole, parts.spec), binary_body({**context, **own}, parts.spec)


def gap(backend: Backend, request: InferRequest) -> float:
    """Return how far the scores are from those of the same request that says nothing is shared."""
    both = [backend.prepare(Batch((one,)))() for one in (replace(request, shared=None), request)]
    ours, theirs = (np.asarray(next(iter(each.values())), np.float64) for each in both)
    return float(np.abs(ours - theirs).max())


async def measure(
    backend: Backend, connection: Connection, rows: int, arguments: argparse.Namespace
) -> dict[str, float | str]:
    """Return the figures for so many candidates."""
    shape = Shape(arguments.dense, arguments.features, arguments.histories, arguments.history_ids)
    forms = written(draw_parts(backend.spec, rows, shape, arguments.seed))
    request = forms[1].decode()
    calls = [computing(backend, one) for one in (replace(request, shared=None), request)]
    computed: Pair = ([], [])
    trips: Pair = ([], [])
    for _ in range(arguments.rounds):
        for number, form in enumerate(forms):
            computed[number].append(cpu_us(calls[number], arguments.seconds))
            trips[number].append(await trip_us(connection, form, arguments.seconds))
    return {
        "candidates": str(rows),
        "compute us": " -> ".join(f"{min(times):.0f}" for times in computed),
        "ratio": stats.median_ratio(computed[1], computed[0]),
        "round trip us": " -> ".join(f"{min(times):.0f}" for times in trips),
        "its ratio": stats.median_ratio(trips[1], trips[0]),
        "gap": f"{gap(backend, request):.1e}",
    }


async def table(arguments: argparse.Namespace) -> list[dict[str, float | str]]:
    """Return a line for each backend and number of candidates."""
    lines = []
    for name in arguments.backends:
        backend = load_one(arguments.artifact, name)
        async with connected(backend) as connection:
            for rows in arguments.candidates:
                figures = await measure(backend, connection, rows, arguments)
                lines.append({"backend": name, **figures})
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; print the manifest and the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("artifact", type=Path)
    add("backends", nargs="+", help="backend or backend:plan")
    add("--candidates", type=int, nargs="+", default=[10, 100, 1000])
    add("--dense", type=int, default=13, help="dense features of the context")
    add("--features", type=int, default=16, help="id features of the context")
    add("--histories", type=int, default=0, help="of which so many have many ids")
    add("--history-ids", type=int, default=50, help="ids in each of them")
    add("--seconds", type=float, default=0.02, help="each measurement")
    add("--rounds", type=int, default=15, help="each measures both in turn")
    add("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    print(json.dumps({**manifest(arguments), "artifact": str(arguments.artifact)}, default=str))
    print_table(setting.run(table(arguments)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
