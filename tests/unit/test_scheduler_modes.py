"""Inline, worker, batch: on which thread a request runs, and with whom."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, DeviceLostError, ServingError
from scheduler.options import SchedulerOptions
from scheduler.types import Batch, InferRequest
from tests.fixtures.gates import Outputs, Recorder, Serving, TwistedBackend, make_request, serving
from tests.fixtures.manual_clock import clock, on_manual_clock, pass_time, settle

pytestmark = pytest.mark.timeout(60)

INLINE = SchedulerOptions(mode="inline")


@on_manual_clock
async def test_worker_mode_runs_one_request_on_each_lane_and_coalesces_nothing() -> None:
    recorder = Recorder()
    backend = FakeBackend(FakeOptions(lanes=2))
    async with serving(backend, SchedulerOptions(mode="worker"), recorder) as server:
        requests = [make_request(1, seed) for seed in range(6)]
        tasks = [await server.asked(request) for request in requests]
        held = [await server.gate.began(), await server.gate.began()]
        await settle()
        assert sorted(server.ran) == [["request-0"], ["request-1"]]
        server.gate.open()
        for run in held:
            run.finish()
        for task, request in zip(tasks, requests, strict=True):
            assert await server.right(task, request)
        assert sorted(server.ran) == [[request.id] for request in requests]
        assert {record.lane for record in recorder.runs} == {0, 1}


@dataclass(slots=True)
class Threads:
    """A twist that remembers on which thread each batch ran."""

    ran_on: list[threading.Thread] = field(default_factory=list)

    def __call__(self, batch: Batch, outputs: Outputs) -> Outputs:
        del batch
        self.ran_on.append(threading.current_thread())
        return outputs

    @property
    def inline(self) -> list[bool]:
        """Whether each batch ran on the loop's own thread."""
        return [thread is threading.current_thread() for thread in self.ran_on]


@on_manual_clock
async def test_inline_mode_answers_on_the_callers_thread_without_a_turn_of_the_loop() -> None:
    threads = Threads()
    async with serving(TwistedBackend(FakeOptions(), threads), INLINE, inline=True) as server:
        request = make_request(3, 1)
        asking = server.engine.infer(request)
        with pytest.raises(StopIteration) as ended:
            asking.send(None)
        assert (ended.value.value.outputs["default"] == server.backend.score(request)).all()
        assert threads.inline == [True]


@on_manual_clock
async def test_inline_mode_answers_many_at_once_each_alone() -> None:
    threads, recorder = Threads(), Recorder()
    backend = TwistedBackend(FakeOptions(), threads)
    async with serving(backend, INLINE, recorder, inline=True) as server:
        requests = [make_request(2, seed) for seed in range(20)]
        tasks = [server.ask(request) for request in requests]
        for task, request in zip(tasks, requests, strict=True):
            assert await server.right(task, request)
        assert server.ran == [[request.id] for request in requests]
        assert threads.inline == [True] * 20
        assert recorder.queued_rows[-1] == 0
        assert clock().timers() == []


@on_manual_clock
async def test_inline_mode_answers_a_failing_request_with_internal_and_serves_on() -> None:
    def fail_the_first(batch: Batch, outputs: Outputs) -> Outputs:
        if batch.requests[0].id == "request-1":
            raise RuntimeError("boom")
        return outputs

    backend = TwistedBackend(FakeOptions(), fail_the_first)
    async with serving(backend, INLINE, inline=True) as server:
        with pytest.raises(ServingError) as answer:
            await server.ask(make_request(1, 1))
        assert answer.value.code is Code.INTERNAL
        request = make_request(1, 2)
        assert await server.right(server.ask(request), request)


@pytest.mark.parametrize(
    "error", [DeviceLostError("fell off the bus"), SystemExit(3), KeyboardInterrupt()], ids=repr
)
@on_manual_clock
async def test_inline_mode_fails_the_model_when_its_device_or_a_lanes_thread_would_be_gone(
    error: BaseException,
) -> None:
    def lose(batch: Batch, outputs: Outputs) -> Outputs:
        raise error

    async with serving(TwistedBackend(FakeOptions(), lose), INLINE, inline=True) as server:
        with pytest.raises(ServingError) as answer:
            await server.ask(make_request(1, 1))
        assert answer.value.code is Code.INTERNAL
        assert not server.engine.ready
        assert not server.engine.live
        assert len(server.ran) == 1


@pytest.mark.parametrize("pieces", [3, 500])
@on_manual_clock
async def test_inline_mode_splits_a_request_into_however_many_batches(pieces: int) -> None:
    backend = FakeBackend(FakeOptions(max_batch_rows=2))
    async with serving(backend, INLINE, inline=True) as server:
        request = make_request(2 * pieces, 1)
        assert await server.right(server.ask(request), request)
        assert len(server.ran) == pieces


class Learnt:
    """A server in batch mode that has answered lone requests of one row until it knows them."""

    def __init__(self, server: Serving, threads: Threads, recorder: Recorder) -> None:
        self.server = server
        self.threads = threads
        self.recorder = recorder

    async def alone(self, request: InferRequest) -> bool:
        """Ask with nobody else about; return whether it ran on the loop."""
        assert await self.server.right(self.server.ask(request), request)
        return self.threads.inline[-1]


@contextlib.asynccontextmanager
async def learnt(
    batch_s: float = 0.0, options: SchedulerOptions | None = None, crowd: int = 1
) -> AsyncIterator[Learnt]:
    """Serve what has learnt from ``crowd`` at a time that a batch takes ``batch_s`` seconds."""
    threads, recorder = Threads(), Recorder()
    backend = TwistedBackend(FakeOptions(), threads)
    async with serving(backend, options, recorder, inline=True) as server:
        loop, gate = clock(), server.gate
        backend.before_run = lambda batch: loop.advance(batch_s)
        for turn in range(20):
            await asyncio.gather(*(server.ask(make_request(1, turn)) for _ in range(crowd)))
        backend.before_run = gate
        assert not threads.inline[0]  # nothing is known of the first
        threads.ran_on.clear()
        recorder.runs.clear()
        backend.batches.clear()
        yield Learnt(server, threads, recorder)


@on_manual_clock
async def test_batch_mode_runs_a_lone_short_request_on_the_loop_once_the_forecast_knows() -> None:
    async with learnt() as state:
        assert [await state.alone(make_request(1, seed)) for seed in range(3)] == [True] * 3
        await settle()
        assert len(state.recorder.runs) == 3
        assert clock().timers() == []


@pytest.mark.parametrize("count", [2, 5])
@on_manual_clock
async def test_several_that_arrive_in_one_turn_of_the_loop_go_to_a_lane_together(
    count: int,
) -> None:
    async with learnt() as state:
        requests = [make_request(1, seed) for seed in range(10, 10 + count)]
        tasks = [state.server.ask(request) for request in requests]
        for task, request in zip(tasks, requests, strict=True):
            assert await state.server.right(task, request)
        assert state.threads.inline == [False]
        assert state.server.ran == [[request.id for request in requests]]


@on_manual_clock
async def test_a_crowd_never_runs_on_the_loop_nor_does_the_first_of_it() -> None:
    async with learnt(crowd=4) as state:
        assert not await state.alone(make_request(1, 1))


@pytest.mark.parametrize(("batch_s", "inline"), [(0.0005, True), (0.002, False)])
@on_manual_clock
async def test_a_request_predicted_to_take_long_never_runs_on_the_loop(
    batch_s: float, *, inline: bool
) -> None:
    async with learnt(batch_s) as state:
        assert await state.alone(make_request(1, 1)) is inline


@on_manual_clock
async def test_a_request_larger_than_any_seen_to_be_quick_goes_to_a_lane() -> None:
    async with learnt() as state:
        assert not await state.alone(make_request(40, 1))
        assert await state.alone(make_request(1, 2))


@on_manual_clock
async def test_a_forecast_gone_stale_sends_the_next_request_to_a_lane() -> None:
    async with learnt() as state:
        await pass_time(2.0)
        assert not await state.alone(make_request(1, 1))
        assert await state.alone(make_request(1, 2))


@on_manual_clock
async def test_nothing_runs_on_the_loop_if_the_options_say_so() -> None:
    async with learnt(options=SchedulerOptions(inline_below_s=0.0)) as state:
        assert not await state.alone(make_request(1, 1))


@on_manual_clock
async def test_a_lone_request_cancelled_in_the_turn_it_arrived_never_runs() -> None:
    async with learnt() as state:
        task = state.server.ask(make_request(1, 50))
        await asyncio.sleep(0)  # it has been admitted, and would run at the end of this turn
        task.cancel()
        await settle()
        assert task.cancelled()
        assert "request-50" not in state.server.started
        assert state.recorder.drops == ["cancelled"]


@on_manual_clock
async def test_closing_in_the_turn_of_a_lone_request_answers_it() -> None:
    async with learnt() as state:
        request = make_request(1, 50)
        task = state.server.ask(request)
        await asyncio.sleep(0)
        await state.server.engine.close(grace_s=1.0)
        assert await state.server.right(task, request)
