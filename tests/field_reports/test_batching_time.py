"""When a batch starts, and what that has to do with deadlines: nothing but what was asked for."""

import asyncio
from dataclasses import fields, replace

import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.options import SchedulerOptions
from tests.fixtures.gates import Recorder, Serving, make_request, serving
from tests.fixtures.manual_clock import clock, on_manual_clock, pass_time

pytestmark = pytest.mark.timeout(60)


@on_manual_clock
async def test_a_lone_request_on_an_idle_model_starts_without_a_tick_of_the_clock() -> None:
    """Field report 13: Ray #36510."""
    async with serving() as server:
        answer = server.ask(make_request(2, 1))
        (await server.gate.began()).finish()
        assert (await answer).timing.queue_s == 0.0
        assert clock().timers() == []


@on_manual_clock
async def test_the_delay_of_a_batch_counts_from_its_first_arrival_and_later_ones_add_none() -> None:
    """Field report 13: Ray #36510."""
    async with serving(options=SchedulerOptions(max_delay_s=10.0)) as server:
        first = await server.asked(make_request(1, 1))
        await pass_time(6.0)
        second = await server.asked(make_request(1, 2))
        await pass_time(3.5)
        assert server.ran == []
        await pass_time(0.5)
        (await server.gate.began()).finish()
        assert (await first).timing.queue_s == pytest.approx(10.0)
        assert (await second).timing.queue_s == pytest.approx(4.0)
        assert server.ran == [["request-1", "request-2"]]


@on_manual_clock
async def test_the_delay_counts_from_arrival_also_while_the_lane_was_busy() -> None:
    """Field report 13: Ray #36510. The wait for the lane is part of the delay, not before it."""
    async with serving(options=SchedulerOptions(max_delay_s=10.0)) as server:
        await server.asked(make_request(1, 1))
        await pass_time(10.0)
        run = await server.gate.began()
        waiting = await server.asked(make_request(1, 2))
        await pass_time(10.0)
        run.finish()
        (await server.gate.began()).finish()
        assert (await waiting).timing.queue_s == pytest.approx(10.0)


async def closed_loop(server: Serving, client: int, turns: int) -> None:
    """Ask again as soon as the answer to the last request is there."""
    for _ in range(turns):
        await server.ask(make_request(1, client))


@pytest.mark.parametrize("clients", [4, 16, 64])
@on_manual_clock
async def test_each_batch_takes_all_that_waits_so_batches_grow_with_the_number_of_clients(
    clients: int,
) -> None:
    """Field report 14: Triton #7271 #3624."""
    async with serving() as server:
        loops = [asyncio.create_task(closed_loop(server, n, turns=20)) for n in range(clients)]
        for _ in range(10):
            run = await server.gate.began()
            assert run.batch.rows == clients
            run.finish()
        server.gate.open()
        await asyncio.gather(*loops)


@on_manual_clock
async def test_nothing_is_shed_at_a_cold_start_however_tight_the_timeouts() -> None:
    """Field report 16: BentoML #1530 #3200."""
    recorder = Recorder()
    async with serving(observer=recorder) as server:
        first = server.ask(make_request(1, 0, timeout_s=60.0))
        run = await server.gate.began()
        await pass_time(5.0)  # the first batch is slow, as first batches are
        asked = [await server.asked(make_request(1, n, timeout_s=0.001)) for n in range(1, 50)]
        server.gate.open()
        run.finish()
        await asyncio.gather(first, *asked)
        assert recorder.drops == []


@on_manual_clock
async def test_the_delay_of_a_batch_is_no_deadline_and_a_deadline_is_no_delay() -> None:
    """Field report 16: BentoML #1530 #3200. A slow answer is late only by its own timeout."""
    async with serving(options=SchedulerOptions(max_delay_s=0.001)) as server:
        patient = await server.asked(make_request(1, 1))
        await pass_time(0.001)
        run = await server.gate.began()
        await pass_time(20.0)
        run.finish()
        assert await server.right(patient, make_request(1, 1))
    async with serving(options=SchedulerOptions(max_delay_s=0.0)) as server:
        hurried = server.ask(make_request(1, 2, timeout_s=3600.0))
        (await server.gate.began()).finish()
        assert (await hurried).timing.queue_s == 0.0


def test_delay_and_deadline_are_told_apart_where_they_are_set() -> None:
    """Field report 16: BentoML #3200."""
    told = {option.name: option.metadata["help"] for option in fields(SchedulerOptions)}
    assert "a batch that is not full may wait" in told["max_delay_s"]
    assert "before its timeout" in told["refuse_late"]


@on_manual_clock
async def test_the_settings_in_force_are_those_a_model_brought_along() -> None:
    """Field report 18: KServe #1666. Per model, they are the ones it runs with."""
    async with serving(options=SchedulerOptions(max_delay_s=60.0)) as server:
        own = replace(SchedulerOptions(), max_batch_ids=42, inline_below_s=0.0)
        await server.engine.load(FakeBackend(FakeOptions(name="other")), own)
        properties = server.engine.spec("other").properties
        assert properties["scheduler.max_batch_ids"] == "42"
        assert properties["scheduler.max_delay_s"] == "0.0"
