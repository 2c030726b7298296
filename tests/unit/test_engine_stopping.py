"""Draining and closing: refuse the new, finish the admitted, in time."""

import asyncio
import threading

import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.types import Batch
from tests.fixtures.gates import Gate, Recorder, Watched, make_request, serving
from tests.fixtures.manual_clock import on_manual_clock, pass_time, settle

pytestmark = pytest.mark.timeout(60)


async def engine_over(*backends: FakeBackend) -> Engine:
    engine = Engine(SchedulerOptions(), Observer())
    for backend in backends:
        await engine.load(backend)
    engine.open()
    return engine


@on_manual_clock
async def test_invariant_8_draining_turns_readiness_off_and_serves_on() -> None:
    async with serving() as server:
        server.gate.open()
        server.engine.drain()
        assert not server.engine.ready
        assert server.engine.live
        request = make_request(2, 1)
        assert await server.right(server.ask(request), request)


@on_manual_clock
async def test_invariant_8_closing_refuses_the_new_and_finishes_what_was_admitted() -> None:
    async with serving() as server:
        busy = await server.occupy()
        requests = [make_request(2, seed) for seed in range(3)]
        tasks = [await server.asked(request) for request in requests]
        closing = asyncio.create_task(server.engine.close(grace_s=10.0))
        await settle()
        assert not server.engine.ready
        with pytest.raises(ServingError) as refusal:
            await server.engine.infer(make_request(1, 7))
        assert refusal.value.code is Code.UNAVAILABLE
        assert not closing.done()
        server.gate.open()
        busy.finish()
        for task, request in zip(tasks, requests, strict=True):
            assert await server.right(task, request)
        await closing
        assert ["request-7"] not in server.ran


@on_manual_clock
async def test_invariant_8_closing_with_a_stuck_lane_answers_everybody_when_the_grace_ends() -> (
    None
):
    recorder, backend = Recorder(), Watched()
    async with serving(backend, observer=recorder) as server:
        await server.occupy()
        queued = await server.asked(make_request(1, 1))
        closing = asyncio.create_task(server.engine.close(grace_s=2.0))
        await settle()
        await pass_time(1.0)
        assert not queued.done()
        await pass_time(1.0)
        for task in server.tasks:
            with pytest.raises(ServingError) as answer:
                await task
            assert answer.value.code is Code.UNAVAILABLE
        await closing
        assert "close" not in backend.calls  # a lane is still inside it
        started, dropped = len(server.ran), len(recorder.drops)
        assert started + dropped == 2


@on_manual_clock
async def test_closing_does_not_wait_out_the_delay_of_a_batch_that_is_not_full() -> None:
    async with serving(options=SchedulerOptions(max_delay_s=60.0)) as server:
        server.gate.open()
        request = make_request(1, 1)
        task = await server.asked(request)
        await server.engine.close(grace_s=2.0)  # the clock never moves
        assert await server.right(task, request)


@pytest.mark.parametrize("grace_s", [0.0, 5.0])
@on_manual_clock
async def test_closing_an_idle_engine_takes_no_time_and_cuts_nobody_off(
    grace_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server:
        server.gate.open()
        await server.ask(make_request(1, 1))
        await server.engine.close(grace_s)
        assert caplog.text == ""


@pytest.mark.parametrize("rows", [0, 1])
@on_manual_clock
async def test_a_closed_engine_refuses_without_calling_its_backend_again(rows: int) -> None:
    backend = Watched()
    engine = await engine_over(backend)
    await engine.close(grace_s=1.0)
    with pytest.raises(ServingError) as refusal:
        await engine.infer(make_request(rows))
    assert refusal.value.code is Code.UNAVAILABLE
    assert backend.calls == ["load", "close"]


@on_manual_clock
async def test_closing_twice_closes_the_backend_once() -> None:
    backend = Watched()
    engine = await engine_over(backend)
    await asyncio.gather(engine.close(grace_s=1.0), engine.close(grace_s=1.0))
    assert backend.calls == ["load", "close"]


@on_manual_clock
async def test_a_backend_that_cannot_close_does_not_cut_off_another_model() -> None:
    class Unclosable(Watched):
        def close(self) -> None:
            self.thread = threading.current_thread()
            super().close()
            raise RuntimeError("cannot close")

    one, two = Unclosable("one"), Watched("two")
    gate = two.before_run = Gate()
    engine = await engine_over(one, two)
    task = asyncio.create_task(engine.infer(make_request(1, model="two")))
    run = await gate.began()
    closing = asyncio.create_task(engine.close(grace_s=60.0))
    await one.until("close")
    assert one.thread is not None
    one.thread.join()
    await settle()  # whatever became of the error has happened
    run.finish()
    await task
    await asyncio.gather(closing, return_exceptions=True)
    assert "close" in two.calls


def test_a_lane_that_outlives_the_event_loop_ends_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend, told, begun = FakeBackend(FakeOptions()), threading.Event(), threading.Event()
    lanes: list[threading.Thread] = []

    def hold(batch: Batch) -> None:
        lanes.append(threading.current_thread())
        begun.set()
        told.wait()

    async def close_while_stuck() -> None:
        backend.before_run = hold
        engine = await engine_over(backend)
        task = asyncio.create_task(engine.infer(make_request(1)))
        await asyncio.to_thread(begun.wait)
        await engine.close(grace_s=0.0)
        with pytest.raises(ServingError):
            await task

    asyncio.run(close_while_stuck())
    told.set()
    lanes[0].join()  # an exception on the thread would fail this test
    assert "the event loop is closed" in caplog.text
