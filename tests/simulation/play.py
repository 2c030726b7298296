"""Play schedules, each on a loop of its own; whoever fails tells its story."""

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Iterable, Iterator

from tests.fixtures.manual_clock import ManualClockLoop
from tests.simulation.schedule import Schedule


def play_all(seeds: Iterable[int]) -> None:
    """Play one schedule for each seed.

    Raises AssertionError with the seed and the story of the first in which anything is wrong.
    """
    with in_peace(), on_one_processor():
        for seed in seeds:
            play(seed)


def play(seed: int) -> None:
    """Play the schedule of ``seed``. Raises AssertionError with its story."""
    story: list[str] = []

    async def body() -> None:
        schedule = Schedule(seed, story)
        with schedule.crew.on_duty():
            await schedule.play()

    try:
        with asyncio.Runner(loop_factory=ManualClockLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, ManualClockLoop)
            runner.run(body())
            assert not asyncio.all_tasks(loop), "a task is left"
            assert loop.timers() == [], "a timer is left"
            gc.collect(1)
            assert loop.faults == []
    except Exception as error:
        raise AssertionError("\n".join([*story, f"seed {seed}: {error}"])) from error


@contextlib.contextmanager
def in_peace() -> Iterator[None]:
    """Spare the log all these failures on purpose, and collections all the rest of the tests."""
    gc.freeze()
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.unfreeze()


@contextlib.contextmanager
def on_one_processor() -> Iterator[None]:
    """Keep the threads on one processor: never running at once, they change places faster there."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
