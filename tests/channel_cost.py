"""What the channel between a front end and the engine costs each of them, a request.

    python -m tests.channel_cost

The engine's side answers at once, without a scheduler, so that what is left is the channel:
frames, slots, messages, a task and a record a request. Processor time (us) of the event loops'
threads, each in a process of its own: the least of the rounds, since neighbours only add.
``--profile`` prints where the engine's side spends it.
"""

import argparse
import asyncio
import cProfile
import itertools
import json
import multiprocessing
import pstats
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from app.compiled.use import is_compiled
from app.frontends.channel import Channel
from app.frontends.client import RemoteEngine
from app.frontends.reporter import Reporter
from app.frontends.session import Session
from app.frontends.slots import Arena, ReadArena, make_memory
from loadtest.lab import closed_loop, setting
from loadtest.lab.manifest import manifest
from loadtest.lab.tables import print_table
from loadtest.workload import ModelShape
from scheduler.engine import Engine
from scheduler.observer import Answered, Observer
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest, InferResponse, Timing

_SLOT_BYTES = 1 << 26
_SHAPE = ModelShape(13, tuple(f"cat_{number}" for number in range(26)), (100_000,) * 26)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a front end does: so many requests of ``rows`` in flight, for so long."""

    in_flight: int
    rows: int
    seconds: float


class AtOnce(Engine):
    """An engine that has the answer already."""

    def __init__(self) -> None:
        super().__init__(SchedulerOptions(), Observer())

    async def infer(self, request: InferRequest) -> InferResponse:
        """Return zeros."""
        outputs = {"default": np.zeros(request.rows, np.float32)}
        return InferResponse("fake", "1", outputs, Timing(0.0, 0.0, request.rows))


def front_end(others: socket.socket, memory: int, orders: Connection) -> None:
    """Ask by ``others`` whatever ``orders`` says, and tell it the requests and the seconds."""
    setting.run(_ask(others, memory, orders))


async def _ask(others: socket.socket, memory: int, orders: Connection) -> None:
    reporter = Reporter()
    engine = RemoteEngine(Arena(memory), reporter)
    channel = Channel(others, engine.received, lambda why: engine.lost())
    engine.connect(channel)
    reporter.connect(channel, engine)
    while (asked := await asyncio.to_thread(orders.recv)) is not None:
        requests = setting.make_requests(_SHAPE, asked.rows, 100, 0)
        ask = _asking(engine, reporter, requests)
        began_s = time.thread_time()
        done = await closed_loop.run(ask, asked.in_flight, asked.seconds)
        orders.send((len(done.latencies_s), time.thread_time() - began_s))
    channel.close()


def _asking(
    engine: RemoteEngine, reporter: Reporter, requests: Sequence[InferRequest]
) -> Callable[[], Awaitable[None]]:
    asked = itertools.cycle(requests)

    async def ask() -> None:
        answer = await engine.infer(next(asked))
        timing = answer.timing
        reporter.answered(Answered("grpc", "fake", timing.batch_rows, None, 1e-3, timing=timing))

    return ask


async def run(arguments: argparse.Namespace) -> list[dict[str, float | str]]:
    """Return a line for each number in flight and of rows: the best of the rounds."""
    memory = make_memory(_SLOT_BYTES)
    own, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    orders, taken = multiprocessing.Pipe()
    asking = multiprocessing.get_context("fork").Process(
        target=front_end, args=(others, memory, taken)
    )
    asking.start()
    session = Session(AtOnce(), ReadArena(memory), lambda frame: None)
    channel = Channel(own, session.received, lambda why: session.close())
    session.connect(channel)
    lines: list[dict[str, float | str]] = []
    for rows, in_flight in itertools.product(arguments.rows, arguments.in_flight):
        asked = Asked(in_flight, rows, arguments.seconds)
        rounds = [await _measured(orders, asked) for _ in range(arguments.rounds + 1)][1:]
        rates, engine_us, front_end_us = zip(*rounds, strict=True)
        lines.append({"rows": rows, "in flight": in_flight, "requests/s": max(rates),
                      "engine us": min(engine_us), "front end us": min(front_end_us)})  # fmt: skip
    orders.send(None)
    await asyncio.to_thread(asking.join)
    return lines


async def _measured(orders: Connection, asked: Asked) -> tuple[float, float, float]:
    orders.send(asked)
    began_s = time.thread_time()
    count, asking_s = await asyncio.to_thread(orders.recv)
    spent_s = time.thread_time() - began_s
    return count / asked.seconds, spent_s / count * 1e6, asking_s / count * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; print the manifest and the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--in-flight", type=int, nargs="+", default=[1, 16])
    add("--rows", type=int, nargs="+", default=[1, 100], help="of each request")
    add("--seconds", type=float, default=0.2, help="each measurement")
    add("--rounds", type=int, default=15, help="after one to warm up")
    add("--profile", action="store_true", help="print where the engine's side spends its time")
    arguments = parser.parse_args(argv)
    print(json.dumps({**manifest(arguments), "compiled": is_compiled()}))
    profile = cProfile.Profile()
    if arguments.profile:
        profile.enable()
    lines = setting.run(run(arguments))
    if arguments.profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    print_table(lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
