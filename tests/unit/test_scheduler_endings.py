"""Requests that end early: deadlines and cancels, queued and running."""

import asyncio
import weakref

import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.options import SchedulerOptions
from scheduler.types import InferResponse
from tests.fixtures.gates import Recorder, make_request, serving
from tests.fixtures.manual_clock import clock, on_manual_clock, pass_time, settle

pytestmark = pytest.mark.timeout(60)

# For tests that count timers: those of deadlines are then the only ones.
NO_WATCHDOG = SchedulerOptions(watchdog_s=0.0)


async def is_too_late(task: asyncio.Task[InferResponse], timeout_ms: str) -> bool:
    assert task.done()
    with pytest.raises(ServingError, match=f"{timeout_ms} ms") as late:
        await task
    return late.value.code is Code.DEADLINE_EXCEEDED


@on_manual_clock
async def test_invariant_4_a_deadline_that_passes_in_the_queue_means_the_request_never_runs() -> (
    None
):
    recorder = Recorder()
    async with serving(observer=recorder) as server:
        busy = await server.occupy()
        late = await server.asked(make_request(1, 1, timeout_s=0.25))
        patient = await server.asked(make_request(1, 2, timeout_s=0.5))
        await pass_time(0.25)
        assert await is_too_late(late, "250")
        assert recorder.drops == ["deadline"]
        server.gate.open()
        busy.finish()
        await patient
        assert server.ran == [["request-99"], ["request-2"]]


@on_manual_clock
async def test_a_deadline_just_ahead_does_not_expire() -> None:
    async with serving() as server:
        busy = await server.occupy()
        task = await server.asked(make_request(1, 1, timeout_s=0.25))
        await pass_time(0.125)
        assert not task.done()
        server.gate.open()
        busy.finish()
        await task


@on_manual_clock
async def test_a_deadline_that_passes_while_running_is_answered_at_once_and_spares_neighbours() -> (
    None
):
    async with serving(options=NO_WATCHDOG) as server:
        busy = await server.occupy()
        request = make_request(3, 2)
        late = await server.asked(make_request(2, 1, timeout_s=0.25))
        neighbour = await server.asked(request)
        busy.finish()
        run = await server.gate.began()
        assert len(run.batch.requests) == 2
        await pass_time(0.25)
        assert await is_too_late(late, "250")
        assert clock().timers() == []
        assert not neighbour.done()
        run.finish()
        assert await server.right(neighbour, request)


@on_manual_clock
async def test_an_answer_in_time_takes_its_deadline_timer_with_it() -> None:
    async with serving(options=NO_WATCHDOG) as server:
        tasks = [server.ask(make_request(1, seed, timeout_s=60.0)) for seed in range(5)]
        await settle()
        assert len(clock().timers()) == 5
        server.gate.open()
        await asyncio.gather(*tasks)
        assert clock().timers() == []


@on_manual_clock
async def test_a_request_whose_deadline_timer_is_late_is_still_not_run() -> None:
    recorder = Recorder()
    async with serving(options=SchedulerOptions(max_delay_s=1.0), observer=recorder) as server:
        late = await server.asked(make_request(1, 1, timeout_s=0.5))
        clock().advance(2.0)
        server.gate.open()
        await server.engine.infer(make_request(1, 2))  # finds it before the timer can run
        assert server.ran == [["request-2"]]
        assert await is_too_late(late, "500")
        assert recorder.drops == ["deadline"]


@on_manual_clock
async def test_a_timeout_too_short_to_move_the_clock_expires_at_once() -> None:
    recorder = Recorder()
    async with serving(observer=recorder) as server:
        task = await server.asked(make_request(1, 1, timeout_s=1e-30))
        assert await is_too_late(task, "1e-27")
        assert server.ran == []
        assert recorder.drops == ["deadline"]


@on_manual_clock
async def test_many_deadlines_missed_while_a_lane_is_busy_do_not_hurt_the_next_request() -> None:
    async with serving() as server:
        busy = await server.occupy()
        tasks = [server.ask(make_request(1, seed, timeout_s=0.001)) for seed in range(1000)]
        await settle()
        await pass_time(1.0)
        assert [await is_too_late(task, "1") for task in tasks] == [True] * 1000
        request = make_request(4, 2000)
        task = await server.asked(request)
        server.gate.open()
        busy.finish()
        assert await server.right(task, request)
        assert server.ran == [["request-99"], ["request-2000"]]


@on_manual_clock
async def test_a_missed_deadline_keeps_the_request_in_memory_no_longer() -> None:
    async with serving() as server:
        busy = await server.occupy()
        request = make_request(1, 1, timeout_s=0.25)
        array = weakref.ref(request.inputs["float_features"])
        await server.asked(request)
        await pass_time(0.25)
        assert isinstance(server.tasks.pop().exception(), ServingError)
        del request
        assert array() is None  # at once: a cycle would hold it until the collector runs
        busy.finish()


@on_manual_clock
async def test_invariant_5_a_request_cancelled_in_the_queue_never_reaches_the_backend() -> None:
    recorder = Recorder()
    async with serving(observer=recorder) as server:
        busy = await server.occupy()
        tasks = [await server.asked(make_request(1, seed)) for seed in range(4)]
        tasks[1].cancel()
        tasks[2].cancel()
        await settle()
        server.gate.open()
        busy.finish()
        await asyncio.gather(tasks[0], tasks[3])
        assert server.ran == [["request-99"], ["request-0", "request-3"]]
        assert recorder.drops == ["cancelled", "cancelled"]
        assert tasks[1].cancelled()


@on_manual_clock
async def test_invariant_5_a_cancel_in_the_turn_that_forms_the_batch_still_keeps_it_out() -> None:
    backend = FakeBackend(FakeOptions(max_batch_rows=2))
    async with serving(backend, SchedulerOptions(max_delay_s=1.0)) as server:
        server.gate.open()
        cancelled = await server.asked(make_request(1, 1))
        other = server.ask(make_request(1, 2))
        cancelled.cancel()  # seen by its task only after the other request has filled the batch
        await settle()
        await pass_time(1.0)
        await other
        assert server.ran == [["request-2"]]


@on_manual_clock
async def test_invariant_5_cancelling_one_of_a_running_batch_leaves_its_neighbours_untouched() -> (
    None
):
    async with serving(options=NO_WATCHDOG) as server:
        busy = await server.occupy()
        requests = [make_request(seed + 1, seed, timeout_s=60.0) for seed in range(8)]
        tasks = [await server.asked(request) for request in requests]
        busy.finish()
        run = await server.gate.began()
        tasks[2].cancel()
        await settle()
        assert tasks[2].cancelled()
        assert len(clock().timers()) == 7
        run.finish()
        for number in (0, 1, 3, 4, 5, 6, 7):
            assert await server.right(tasks[number], requests[number])
        server.gate.open()
        assert await server.right(server.ask(requests[2]), requests[2])


@on_manual_clock
async def test_a_batch_whose_every_request_was_cancelled_frees_its_lane_for_the_next() -> None:
    async with serving() as server:
        tasks = [await server.asked(make_request(1, seed)) for seed in range(3)]
        run = await server.gate.began()
        for task in tasks:
            task.cancel()
        request = make_request(2, 9)
        answer = await server.asked(request)
        server.gate.open()
        run.finish()
        assert await server.right(answer, request)


@on_manual_clock
async def test_a_cancel_that_crosses_the_answer_wins_and_leaves_nothing_behind() -> None:
    async with serving(options=SchedulerOptions(max_delay_s=1.0)) as server:
        task = await server.asked(make_request(1, 1, timeout_s=0.5))
        clock().advance(2.0)
        server.gate.open()
        other = server.engine.infer(make_request(1, 2))
        answering = asyncio.ensure_future(other)
        await asyncio.sleep(0)  # the deadline is answered with an error in this turn
        task.cancel()
        await settle()
        await pass_time(1.0)
        await answering
        assert task.cancelled()


@on_manual_clock
async def test_an_answer_that_crosses_a_cancel_is_dropped_and_the_model_lives_on() -> None:
    async with serving(options=SchedulerOptions(max_delay_s=1.0)) as server:
        late = await server.asked(make_request(1, 1, timeout_s=0.5))
        clock().advance(2.0)
        other = server.ask(make_request(1, 2))  # finds the deadline missed after the cancel
        late.cancel()
        await settle()
        assert late.cancelled()
        server.gate.open()
        await pass_time(1.0)
        await other
        assert server.engine.live


@on_manual_clock
async def test_cancelling_a_request_that_has_its_answer_changes_nothing() -> None:
    async with serving() as server:
        server.gate.open()
        request = make_request(1, 1)
        task = server.ask(request)
        await task
        assert not task.cancel()
        assert await server.right(task, request)
