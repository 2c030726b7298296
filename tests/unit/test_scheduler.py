"""Batching, admission and answers. The clock stands still and every run waits to be told."""

import asyncio
import math

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.scheduler import SchedulerOptions
from scheduler.types import Batch, InferRequest
from tests.fixtures.gates import (
    Recorder,
    TwistedBackend,
    make_request,
    on_manual_clock,
    pass_time,
    serving,
    settle,
)

pytestmark = pytest.mark.timeout(20)


async def refusal_of(answer: "asyncio.Task[object] | asyncio.Future[object]") -> ServingError:
    with pytest.raises(ServingError) as refusal:
        await answer
    return refusal.value


@on_manual_clock
async def test_invariant_1_an_idle_lane_starts_at_once() -> None:
    async with serving() as server:
        task = server.ask(make_request(2, seed=1))
        run = await server.gate.began()  # the clock never moved
        assert [request.id for request in run.batch.requests] == ["request-1"]
        run.finish()
        assert (await task).timing.queue_s == 0.0


@on_manual_clock
async def test_invariant_1_arrivals_while_a_lane_is_busy_share_its_next_batch() -> None:
    async with serving() as server:
        busy = await server.occupy()
        requests = [make_request(seed % 3 + 1, seed) for seed in range(64)]
        tasks = [server.ask(request) for request in requests]
        await settle()
        assert server.ran == [["request-99"]]
        server.gate.open()
        busy.finish()
        for task, request in zip(tasks, requests, strict=True):
            assert await server.right(task, request)
        assert server.ran[1:] == [[request.id for request in requests]]


@on_manual_clock
async def test_max_batch_rows_counts_rows_and_not_requests() -> None:
    async with serving(FakeBackend(FakeOptions(max_batch_rows=100))) as server:
        busy = await server.occupy()
        tasks = [server.ask(make_request(50, seed)) for seed in range(10)]
        await settle()
        server.gate.open()
        busy.finish()
        await asyncio.gather(*tasks)
        assert [batch.rows for batch in server.backend.batches] == [1, *[100] * 5]


@on_manual_clock
async def test_a_batch_of_one_row_at_most_runs_requests_one_after_another() -> None:
    async with serving(FakeBackend(FakeOptions(max_batch_rows=1))) as server:
        server.gate.open()
        requests = [make_request(1, seed) for seed in range(5)]
        tasks = [server.ask(request) for request in requests]
        await asyncio.gather(*tasks)
        assert server.ran == [[request.id] for request in requests]


@on_manual_clock
async def test_every_lane_takes_work_and_a_slow_lane_never_blocks_a_free_one() -> None:
    async with serving(FakeBackend(FakeOptions(lanes=2))) as server:
        first, second = server.ask(make_request(1, 1)), server.ask(make_request(1, 2))
        slow, quick = await server.gate.began(), await server.gate.began()
        if slow.batch.requests[0].id != "request-1":
            slow, quick = quick, slow
        quick.finish()
        await second
        for seed in (3, 4):
            task = server.ask(make_request(1, seed))
            (await server.gate.began()).finish()
            await task
        assert not first.done()
        slow.finish()
        await first


@on_manual_clock
async def test_max_delay_holds_a_batch_until_its_oldest_request_has_waited_that_long() -> None:
    async with serving(options=SchedulerOptions(max_delay_s=1.0)) as server:
        first = await server.asked(make_request(1, 1))
        await pass_time(0.75)
        second = await server.asked(make_request(1, 2))
        assert server.ran == []
        await pass_time(0.25)
        run = await server.gate.began()
        assert len(run.batch.requests) == 2
        run.finish()
        assert (await first).timing.queue_s == 1.0
        assert (await second).timing.queue_s == 0.25


@on_manual_clock
async def test_max_delay_starts_anew_for_a_request_that_arrives_after_the_oldest_left() -> None:
    async with serving(options=SchedulerOptions(max_delay_s=1.0)) as server:
        first = await server.asked(make_request(1, 1))
        await pass_time(0.5)
        second = await server.asked(make_request(1, 2))
        first.cancel()
        await pass_time(0.5)
        assert server.ran == []
        await pass_time(0.5)
        (await server.gate.began()).finish()
        assert (await second).timing.queue_s == 1.0


@on_manual_clock
async def test_max_delay_never_holds_a_full_batch_and_leaves_no_timer() -> None:
    backend = FakeBackend(FakeOptions(max_batch_rows=4))
    async with serving(backend, SchedulerOptions(max_delay_s=60.0)) as server:
        server.gate.open()
        tasks = [server.ask(make_request(2, seed)) for seed in (1, 2)]
        await asyncio.gather(*tasks)
        assert server.ran == [["request-1", "request-2"]]


@on_manual_clock
async def test_a_held_request_that_is_cancelled_leaves_no_timer() -> None:
    async with serving(options=SchedulerOptions(max_delay_s=60.0)) as server:
        task = await server.asked(make_request(1, 1))
        task.cancel()
        await settle()
        assert server.ran == []


@on_manual_clock
async def test_invariant_2_a_request_beyond_the_rows_that_may_wait_is_refused_at_once() -> None:
    backend = FakeBackend(FakeOptions(max_batch_rows=10))
    recorder = Recorder()
    async with serving(backend, SchedulerOptions(max_queue_rows=10), recorder) as server:
        busy = await server.occupy()
        queued = await server.asked(make_request(10, 1))
        refused = await server.asked(make_request(1, 2))
        assert refused.done()
        assert not queued.done()
        refusal = await refusal_of(refused)
        assert refusal.code is Code.OVERLOADED
        assert "limit of 10 rows (max_queue_rows)" in refusal.detail
        assert recorder.drops == ["queue_full"]
        server.gate.open()
        busy.finish()
        await queued
        assert server.ran == [["request-99"], ["request-1"]]


@on_manual_clock
async def test_invariant_2_a_request_beyond_the_bytes_that_may_wait_is_refused_at_once() -> None:
    request = make_request(10, 1)
    async with serving(options=SchedulerOptions(max_queue_bytes=request.size_bytes)) as server:
        busy = await server.occupy()
        queued = await server.asked(request)
        refused = await server.asked(make_request(1, 2))
        assert refused.done()
        refusal = await refusal_of(refused)
        assert refusal.code is Code.OVERLOADED
        assert "max_queue_bytes" in refusal.detail
        server.gate.open()
        busy.finish()
        await queued


@on_manual_clock
async def test_a_queue_always_has_room_for_the_rows_of_one_full_batch() -> None:
    backend = FakeBackend(FakeOptions(max_batch_rows=8))
    async with serving(backend, SchedulerOptions(max_queue_rows=1)) as server:
        server.gate.open()
        request = make_request(8)
        assert await server.right(server.ask(request), request)


@on_manual_clock
async def test_a_request_larger_than_the_whole_queue_is_not_told_to_retry() -> None:
    async with serving(options=SchedulerOptions(max_queue_bytes=64)) as server:
        refusal = await refusal_of(server.ask(make_request(100)))
        assert refusal.code in (Code.PAYLOAD_TOO_LARGE, Code.INVALID_REQUEST)
        assert "max_queue_bytes" in refusal.detail


@on_manual_clock
async def test_a_refusal_after_some_work_estimates_when_to_retry() -> None:
    backend = FakeBackend(FakeOptions(max_batch_rows=10))
    async with serving(backend, SchedulerOptions(max_queue_rows=10)) as server:
        first = server.ask(make_request(1, 1))
        (await server.gate.began()).finish()
        await first
        busy = await server.occupy()
        queued = await server.asked(make_request(10, 2))
        refusal = await refusal_of(server.ask(make_request(1, 3)))
        # Ten rows wait for the one lane; a row took what the first request took.
        assert refusal.retry_after_s == pytest.approx(10 * (await first).timing.compute_s)
        server.gate.open()
        busy.finish()
        await queued


@on_manual_clock
async def test_invariant_3_a_bad_request_is_refused_before_it_is_queued() -> None:
    async with serving() as server:
        busy = await server.occupy()
        good = await server.asked(make_request(2, 1))
        bad = make_request(2, 2)
        bad.inputs["id_list_features.lengths"][:] = 1_000_000
        refused = await server.asked(bad)
        assert refused.done()
        assert (await refusal_of(refused)).code is Code.INVALID_REQUEST
        server.gate.open()
        busy.finish()
        await good
        assert server.ran == [["request-99"], ["request-1"]]


@on_manual_clock
async def test_invariant_3_a_request_is_checked_exactly_once() -> None:
    class Counting(FakeBackend):
        checked: list[str]

        def check(self, request: InferRequest) -> None:
            self.checked.append(request.id)
            super().check(request)

    backend = Counting(FakeOptions())
    backend.checked = []
    async with serving(backend) as server:
        busy = await server.occupy()
        task = await server.asked(make_request(2, 1))
        server.gate.open()
        busy.finish()
        await task
        assert backend.checked == ["request-99", "request-1"]


def two_headed() -> FakeBackend:
    """Return a fake with a second output, the negated scores."""

    class TwoHeaded(TwistedBackend):
        @property
        def spec(self):  # type: ignore[no-untyped-def]
            ...

    raise NotImplementedError


@on_manual_clock
async def test_requests_in_one_batch_get_only_the_outputs_each_asked_for() -> None:
    pass


@on_manual_clock
async def test_zero_rows_get_an_empty_answer_without_a_run() -> None:
    async with serving() as server:
        response = await server.engine.infer(make_request(0))
        assert response.outputs["default"].shape == (0,)
        assert response.outputs["default"].dtype == np.float32
        assert response.timing.batch_rows == 0
        assert server.ran == []
