"""What is left of a front end that is gone, or that never came to be: nothing."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.frontends.settings import FrontEndSettings
from app.frontends.supervisor import FrontEnd
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.types import Batch
from tests.fixtures.far_engine import far, until
from tests.fixtures.gates import make_request

SETTINGS = FrontEndSettings(number=0, memory=-1, transports={}, shares={})


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Collect no garbage: a server does so seldom."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _mappings() -> int:
    """Return how many slots' memories this process has mapped."""
    return Path("/proc/self/maps").read_text().count("memfd:narsil-slots")


@pytest.mark.usefixtures("uncollected")
async def test_the_memory_of_a_lost_front_end_goes_with_its_last_reader() -> None:
    begun, opened = threading.Event(), threading.Event()

    def hold(batch: Batch) -> None:
        del batch
        begun.set()
        opened.wait()

    before = _mappings()
    async with far() as both:
        both.backend.before_run = hold
        asking = asyncio.create_task(both.remote.infer(make_request(1)))
        try:
            await asyncio.to_thread(begun.wait)
            both.to_engine.close()
            both.remote.lost()
            await until(lambda: bool(both.lost))
            assert _mappings() == before + 2, "the batch that runs still reads a slot"
        finally:
            opened.set()
        await asyncio.wait((asking,))
        await until(lambda: _mappings() == before + 1)  # the front end's own


def _front_end(slot_bytes: int) -> FrontEnd:
    return FrontEnd(Engine(SchedulerOptions(), Observer()), SETTINGS, slot_bytes)


async def test_a_front_end_that_cannot_be_started_says_so_and_nobody_waits_for_it() -> None:
    front_end = _front_end(1 << 62)  # more than there are addresses
    await front_end.keep()
    with pytest.raises(OSError, match="front end 0 cannot start: "):
        await front_end.ready
    assert front_end.pid == 0


async def test_a_front_end_that_is_stopped_while_it_starts_does_not_stay() -> None:
    front_end = _front_end(1 << 16)
    keeping = asyncio.create_task(front_end.keep())
    await asyncio.sleep(0)
    assert front_end.pid == 0
    front_end.stop(60.0)
    await keeping
    assert (front_end.pid > 0, front_end.alive) == (True, False)
