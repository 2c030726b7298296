"""How batches form. The clock stands still and every run waits to be told."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.options import SchedulerOptions
from scheduler.types import Array, InferRequest, ModelSpec, TensorSpec
from tests.fixtures.gates import make_request, serving
from tests.fixtures.manual_clock import on_manual_clock, pass_time, settle

pytestmark = pytest.mark.timeout(60)


@on_manual_clock
async def test_invariant_1_an_idle_lane_starts_at_once() -> None:
    async with serving() as server:
        task = server.ask(make_request(2, seed=1))
        run = await server.gate.began()  # the clock never moved
        assert [request.id for request in run.batch.requests] == ["request-1"]
        run.finish()
        await task


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


class Personal(FakeBackend):
    """A fake that also takes an optional input, one number a row."""

    @property
    def spec(self) -> ModelSpec:
        spec = super().spec
        bias = TensorSpec("bias", np.dtype(np.float32), ("rows",), optional=True)
        return replace(spec, inputs=(*spec.inputs, bias))

    def score(self, request: InferRequest) -> Array:
        scores = super().score(request)
        bias = np.asarray(request.inputs.get("bias", 0.0), np.float32)
        return np.asarray(scores, np.float32) + bias


def with_bias(rows: int, seed: int) -> InferRequest:
    request = make_request(rows, seed)
    return replace(request, inputs={**request.inputs, "bias": np.full(rows, seed, np.float32)})


@on_manual_clock
async def test_requests_with_and_without_an_optional_input_never_share_a_batch() -> None:
    async with serving(Personal(FakeOptions())) as server:
        busy = await server.occupy()
        requests = [
            with_bias(seed + 1, seed) if seed % 2 else make_request(2, seed) for seed in range(6)
        ]
        tasks = [await server.asked(request) for request in requests]
        server.gate.open()
        busy.finish()
        for task, request in zip(tasks, requests, strict=True):
            assert await server.right(task, request)
        assert server.ran[1:] == [
            ["request-0", "request-2", "request-4"],
            ["request-1", "request-3", "request-5"],
        ]


@on_manual_clock
async def test_a_batch_of_one_group_is_not_full_because_of_what_waits_in_another() -> None:
    async with serving(Personal(FakeOptions(max_batch_rows=4))) as server:
        busy = await server.occupy()
        requests = [with_bias(2, 1), make_request(2, 2), make_request(2, 3), with_bias(2, 4)]
        tasks = [await server.asked(request) for request in requests]
        server.gate.open()
        busy.finish()
        await asyncio.gather(*tasks)
        assert sorted(server.ran[1:]) == [["request-1", "request-4"], ["request-2", "request-3"]]


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
        await asyncio.gather(first, second)


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
        await second


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
