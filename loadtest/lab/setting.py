"""The setting all tools of the lab share: the server's loop, its options, an engine, requests."""

import asyncio
import contextlib
import gc
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import uvloop

from loadtest.workload import ModelShape, draw
from scheduler.backend import Backend
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest, InferResponse

T = TypeVar("T")

# As app/server.py has them; what is measured here is what is served there.
SWITCH_INTERVAL_S = 1e-4
GC_THRESHOLD = 50_000

FAKE_SHAPE = ModelShape(3, ("cat_0", "cat_1"), (1000, 1000))


def run(
    main: Coroutine[Any, Any, T],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> T:
    """Run ``main`` as the server would be run: on uvloop, the threads switching often."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    settle_memory()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)


def settle_memory() -> None:
    """Take the garbage collector off the request path; again after something large was loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


@contextlib.asynccontextmanager
async def serving(
    backend: Backend, options: SchedulerOptions | None = None, observer: Observer | None = None
) -> AsyncIterator[Engine]:
    """Serve ``backend`` on an engine of its own."""
    engine = Engine(options or SchedulerOptions(), observer or Observer())
    await engine.load(backend)
    engine.open()
    try:
        yield engine
    finally:
        await engine.close(grace_s=10.0)


def make_requests(shape: ModelShape, rows: int, count: int, seed: int) -> list[InferRequest]:
    """Return ``count`` distinct requests of ``rows`` rows for the only model served."""
    rng = np.random.default_rng(seed)
    return [InferRequest("", rows, draw(shape, rows, rng)) for _ in range(count)]


class Answers(Protocol):
    """What requests can be asked of: an engine, or one model's scheduler."""

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer ``request``."""


def asking(
    answers: Answers, requests: Sequence[InferRequest]
) -> Callable[[], Awaitable[InferResponse]]:
    """Return what asks one of ``requests`` after the other, for ever."""
    turns = itertools.cycle(requests)
    return lambda: answers.infer(next(turns))
