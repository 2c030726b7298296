"""What takes a model down for good: a run that never ends, and a device that is lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, DeviceLostError, ServingError
from scheduler.lanes import Job, Lanes
from scheduler.options import SchedulerOptions
from scheduler.types import Batch, InferResponse
from scheduler.waiting import Piece, Waiting
from tests.fixtures.gates import Recorder, Serving, make_request, serving
from tests.fixtures.manual_clock import clock, on_manual_clock, pass_time, settle

pytestmark = pytest.mark.timeout(60)

FIVE_S = SchedulerOptions(watchdog_s=5.0)


async def code_of(task: asyncio.Task[InferResponse]) -> Code:
    with pytest.raises(ServingError) as answer:
        await task
    return answer.value.code


async def is_down(server: Serving) -> bool:
    """Return whether the model is neither ready nor live, and refuses."""
    refused = await code_of(server.ask(make_request(1, 1000))) is Code.UNAVAILABLE
    return refused and not server.engine.ready and not server.engine.live


@on_manual_clock
async def test_a_run_beyond_the_watchdog_answers_everybody_and_turns_readiness_off() -> None:
    recorder = Recorder()
    async with serving(options=FIVE_S, observer=recorder) as server:
        told: list[tuple[bool, bool]] = []
        server.engine.watch(lambda: told.append((server.engine.ready, server.engine.live)))
        run = await server.occupy()
        for seed in (1, 2):
            await server.asked(make_request(1, seed, timeout_s=60.0))
        await pass_time(4.9)
        assert server.engine.ready
        await pass_time(0.1)
        assert all(task.done() for task in server.tasks)
        assert [await code_of(task) for task in server.tasks] == [Code.INTERNAL] * 3
        assert told == [(False, False)]
        assert clock().timers() == []
        assert await is_down(server)
        run.finish()  # its late answer is for nobody
        await settle()
        assert len(server.started) + len(recorder.drops) == 3


@on_manual_clock
async def test_the_detail_of_a_stuck_run_names_the_option_that_judged_it() -> None:
    async with serving(options=FIVE_S) as server:
        await server.occupy()
        await pass_time(7.0)
        with pytest.raises(ServingError, match=r"running for 7 s \(watchdog_s\)"):
            await server.tasks[0]


@on_manual_clock
async def test_the_watchdog_counts_from_the_beginning_of_each_run() -> None:
    async with serving(options=FIVE_S) as server:
        first = await server.occupy()
        second = await server.asked(make_request(1, 1))
        await pass_time(4.0)
        first.finish()
        run = await server.gate.began()
        await pass_time(4.0)
        assert not second.done()
        run.finish()
        await second
        assert clock().timers() == []
        assert server.engine.ready


@on_manual_clock
async def test_the_watchdog_sees_a_stuck_lane_beside_a_busy_one() -> None:
    async with serving(FakeBackend(FakeOptions(lanes=2)), FIVE_S) as server:
        await server.occupy()
        for seed in range(4):
            await pass_time(1.0)
            task = server.ask(make_request(1, seed))
            (await server.gate.began()).finish()
            await task
        assert server.engine.ready
        await pass_time(1.0)
        assert await is_down(server)


@on_manual_clock
async def test_the_watchdog_looks_again_when_the_longest_of_the_other_runs_would_be_stuck() -> None:
    async with serving(FakeBackend(FakeOptions(lanes=2)), FIVE_S) as server:
        first = await server.occupy()
        await pass_time(3.0)
        await server.occupy()
        first.finish()
        await server.tasks[0]
        await pass_time(2.0)
        assert server.engine.ready
        await pass_time(2.9)
        assert server.engine.ready
        await pass_time(0.2)
        assert await is_down(server)
        assert clock().timers() == []


@on_manual_clock
async def test_an_idle_model_and_one_without_a_watchdog_have_no_timer() -> None:
    async with serving(options=FIVE_S) as server:
        assert clock().timers() == []
        (await server.occupy()).finish()
        await server.tasks[0]
        assert clock().timers() == []
    async with serving(options=SchedulerOptions(watchdog_s=0.0)) as server:
        await server.occupy()
        assert clock().timers() == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", ["stuck", "dead"])
@on_manual_clock
async def test_what_was_gathered_for_a_lane_that_is_gone_counts_as_dropped(end: str) -> None:
    recorder = Recorder()
    async with full_batches(recorder) as server:
        run = await server.occupy()
        ahead = await server.asked(make_request(4, 1))
        if end == "stuck":
            await pass_time(5.0)
        else:
            run.fail(SystemExit())
        assert await code_of(ahead) is Code.INTERNAL
        await settle()
        assert len(recorder.drops) == 1


@contextlib.asynccontextmanager
async def full_batches(recorder: Recorder, lanes: int = 1) -> AsyncIterator[Serving]:
    """Serve with batches of four rows, so that four rows are gathered ahead."""
    backend = FakeBackend(FakeOptions(max_batch_rows=4, lanes=lanes))
    async with serving(backend, FIVE_S, recorder) as server:
        yield server


@on_manual_clock
async def test_a_lost_device_answers_everybody_and_runs_no_halves() -> None:
    recorder = Recorder()
    async with serving(observer=recorder) as server:
        busy = await server.occupy()
        together = [await server.asked(make_request(1, seed)) for seed in range(4)]
        busy.finish()
        run = await server.gate.began()
        waiting = [await server.asked(make_request(1, seed)) for seed in (5, 6)]
        run.fail(DeviceLostError("CUDA error: an illegal memory access was encountered"))
        for task in (*together, *waiting):
            assert await code_of(task) is Code.INTERNAL
        assert await is_down(server)
        assert len(server.ran) == 2
        assert len(server.started) + len(recorder.drops) == 7


@on_manual_clock
async def test_a_device_lost_on_one_lane_answers_those_of_the_other_too() -> None:
    recorder = Recorder()
    async with full_batches(recorder, lanes=2) as server:
        one, other = await server.occupy(), await server.occupy()
        one.fail(DeviceLostError())
        for task in server.tasks:
            assert await code_of(task) is Code.INTERNAL
        assert await is_down(server)
        other.finish()
        await settle()
        assert len(server.ran) + len(recorder.drops) == 2


@on_manual_clock
async def test_no_batch_reaches_a_lost_device_not_even_one_that_waits_for_its_lane() -> None:
    def lose(batch: Batch) -> None:
        raise DeviceLostError

    backend = FakeBackend(FakeOptions())
    backend.before_run = lose
    lanes = Lanes(backend, clock().time, lambda piece: True, lambda job: None, lambda: None)
    for seed in (1, 2):
        lanes.submit(Job((Piece(Waiting(make_request(1, seed), 0.0), 0, 1, 0),)))
    lanes.stop()
    assert lanes.join(timeout_s=5.0)  # without a turn of the loop
    assert len(backend.batches) == 1
