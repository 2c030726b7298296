"""A backend with more lanes now and fewer then."""

import asyncio
import threading
from collections.abc import Mapping

import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.options import SchedulerOptions
from scheduler.types import Array, Batch
from tests.fixtures.gates import make_request, serving

pytestmark = pytest.mark.timeout(60)


class ElasticBackend(FakeBackend):
    """The fake, of whose lanes some can be taken away."""

    def __init__(self, lanes: int) -> None:
        super().__init__(FakeOptions(lanes=lanes))
        self.now = lanes
        self.told: list[int] = []

    def lanes_for(self, waiting_rows: int) -> int:
        """Return as many as the test says."""
        self.told.append(waiting_rows)
        return self.now


async def test_as_many_batches_run_as_there_are_lanes_now_and_the_rest_wait_to_be_joined() -> None:
    backend = ElasticBackend(lanes=3)
    backend.now = 1
    async with serving(backend) as server:
        tasks = [await server.asked(make_request(1, 0))]
        first = await server.gate.began()
        tasks += [await server.asked(make_request(1, seed)) for seed in (1, 2)]
        assert server.ran == [["request-0"]]
        assert backend.told[-1] == 2
        backend.now = 2
        await server.asked(make_request(1, 3))  # whatever changes, the lanes are asked for after it
        await server.asked(make_request(1, 4))
        second = await server.gate.began()
        assert len(second.batch.requests) >= 4
        for run in (first, second):
            run.finish()
        server.gate.open()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("lanes", [-1, 0, 99])
async def test_a_number_of_lanes_that_cannot_be_is_taken_for_the_nearest_that_can(
    lanes: int,
) -> None:
    backend = ElasticBackend(lanes=2)
    backend.now = lanes
    async with serving(backend) as server:
        tasks = [await server.asked(make_request(1, seed)) for seed in range(4)]
        held = [await server.gate.began() for _ in range(2 if lanes > 0 else 1)]
        assert len(server.ran) == len(held)
        server.gate.open()
        for run in held:
            run.finish()
        await asyncio.gather(*tasks)


class Remembers(FakeBackend):
    """The fake, which remembers on which threads it ran."""

    def __init__(self) -> None:
        super().__init__(FakeOptions())
        self.threads: set[threading.Thread] = set()

    def run(self, batch: Batch) -> Mapping[str, Array]:
        self.threads.add(threading.current_thread())
        return super().run(batch)


class RemembersElastic(Remembers):
    """The same, elastic."""

    def lanes_for(self, waiting_rows: int) -> int:
        """Return one."""
        return 1


@pytest.mark.parametrize(("kind", "inline"), [(Remembers, True), (RemembersElastic, False)])
async def test_what_waits_for_other_machines_never_runs_on_the_event_loop(
    kind: type[Remembers], inline: bool
) -> None:
    backend = kind()
    async with serving(backend, SchedulerOptions(inline_below_s=10.0), inline=True) as server:
        for seed in range(40):
            await server.engine.infer(make_request(1, seed))
    assert (threading.current_thread() in backend.threads) is inline
