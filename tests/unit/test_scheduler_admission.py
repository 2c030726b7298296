"""Who gets in, who is refused, and what the refusal says."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.options import SchedulerOptions
from scheduler.types import Array, InferRequest
from tests.fixtures.gates import HeldRun, Recorder, Serving, make_request, serving
from tests.fixtures.manual_clock import on_manual_clock, pass_time

pytestmark = pytest.mark.timeout(60)


async def refusal_of(answer: asyncio.Task[Any]) -> ServingError:
    with pytest.raises(ServingError) as refusal:
        await answer
    return refusal.value


@on_manual_clock
async def test_invariant_2_a_request_beyond_the_rows_that_may_wait_is_refused_at_once() -> None:
    backend = FakeBackend(FakeOptions(max_batch_rows=10))
    recorder = Recorder()
    async with serving(backend, SchedulerOptions(max_queue_rows=10), recorder) as server:
        busy = await server.occupy()
        queued = await server.asked(make_request(9, 1))
        refused = await server.asked(make_request(2, 2))
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


@contextlib.asynccontextmanager
async def busy_with_work(
    options: SchedulerOptions, recorder: Recorder | None = None
) -> AsyncIterator[tuple[Serving, HeldRun]]:
    """Serve what has learnt that nine rows take 100 ms, and is 25 ms into the next nine."""
    backend = FakeBackend(FakeOptions(max_batch_rows=10))
    async with serving(backend, options, recorder) as server:
        for _ in range(20):
            task = server.ask(make_request(9, 1))
            run = await server.gate.began()
            await pass_time(0.1)
            run.finish()
            await task
        server.ask(make_request(9, 1))
        busy = await server.gate.began()
        await pass_time(0.025)
        yield server, busy


@on_manual_clock
async def test_a_refusal_after_some_work_estimates_when_to_retry() -> None:
    async with busy_with_work(SchedulerOptions(max_queue_rows=10)) as (server, busy):
        queued = await server.asked(make_request(9, 2))
        refusal = await refusal_of(server.ask(make_request(9, 3)))
        # 75 ms are left of the running nine rows, and nine more wait.
        assert refusal.retry_after_s == pytest.approx(0.175, rel=0.1)
        server.gate.open()
        busy.finish()
        await queued


@on_manual_clock
async def test_a_request_predicted_to_be_answered_too_late_is_refused_at_once() -> None:
    recorder = Recorder()
    async with busy_with_work(SchedulerOptions(), recorder) as (server, busy):
        queued = await server.asked(make_request(9, 2, timeout_s=60.0))
        late = await server.asked(make_request(9, 3, timeout_s=0.25))
        assert late.done()
        refusal = await refusal_of(late)
        assert refusal.code is Code.OVERLOADED
        assert "ms, above 200 ms, which is 80% of the timeout of 250 ms" in refusal.detail
        assert refusal.retry_after_s is not None
        assert 0 < refusal.retry_after_s < 0.25
        assert recorder.drops == ["predicted_late"]
        patient = await server.asked(make_request(9, 4, timeout_s=60.0))
        server.gate.open()
        busy.finish()
        await asyncio.gather(queued, patient)
        assert server.started == {"request-1", "request-2", "request-4"}


@on_manual_clock
async def test_predicted_lateness_refuses_nobody_if_the_options_say_so() -> None:
    options = SchedulerOptions(refuse_late=False)
    async with busy_with_work(options) as (server, busy):
        late = await server.asked(make_request(9, 3, timeout_s=0.05))
        assert not late.done()
        server.gate.open()
        busy.finish()
        with pytest.raises(ServingError) as answer:
            await late
        assert answer.value.code is Code.DEADLINE_EXCEEDED


@on_manual_clock
async def test_an_admitted_request_that_can_no_longer_be_in_time_is_dropped_before_it_runs() -> (
    None
):
    recorder = Recorder()
    async with busy_with_work(SchedulerOptions(), recorder) as (server, busy):
        task = await server.asked(make_request(9, 2, timeout_s=0.25))  # 175 ms, if all goes well
        await pass_time(0.2)  # it does not
        server.gate.open()
        busy.finish()
        with pytest.raises(ServingError) as answer:
            await task
        assert answer.value.code is Code.DEADLINE_EXCEEDED
        assert recorder.drops == ["deadline"]
        assert server.started == {"request-1"}


@pytest.mark.parametrize("priority", [-1, 3])
@on_manual_clock
async def test_a_priority_out_of_range_is_an_invalid_request(priority: int) -> None:
    async with serving(options=SchedulerOptions(priorities=3)) as server:
        refusal = await refusal_of(server.ask(make_request(1, 1, priority=priority)))
        assert refusal.code is Code.INVALID_REQUEST
        assert refusal.detail == f"priority: must be 0 to 2, got {priority}"
        assert server.ran == []


@on_manual_clock
async def test_a_higher_class_is_served_before_a_lower_one_that_came_first() -> None:
    async with serving(FakeBackend(FakeOptions(max_batch_rows=2))) as server:
        busy = await server.occupy()
        low = [await server.asked(make_request(1, seed, priority=3)) for seed in (1,)]
        high = [await server.asked(make_request(2, seed, priority=0)) for seed in (2, 3)]
        server.gate.open()
        busy.finish()
        await asyncio.gather(*low, *high)
        assert server.ran[1:] == [["request-2"], ["request-3"], ["request-1"]]


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("float_features", np.zeros((2, 4), np.float32)),  # against the spec
        ("id_list_features.lengths", np.full((2, 2), 9)),  # against what the backend checks
    ],
)
@on_manual_clock
async def test_invariant_3_a_bad_request_is_refused_before_it_is_queued(
    name: str, array: Array
) -> None:
    async with serving() as server:
        busy = await server.occupy()
        good, bad = make_request(2, 1), make_request(2, 2)
        answered = await server.asked(good)
        refused = await server.asked(replace(bad, inputs={**bad.inputs, name: array}))
        assert refused.done()
        assert (await refusal_of(refused)).code is Code.INVALID_REQUEST
        server.gate.open()
        busy.finish()
        assert await server.right(answered, good)
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


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_queue_rows": 0},
        {"max_queue_bytes": 0},
        {"max_delay_s": -1.0},
        {"max_delay_s": math.inf},
        {"max_delay_s": math.nan},
    ],
)
def test_bounds_under_which_nothing_could_be_served_are_refused_by_name(
    bounds: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match=next(iter(bounds))):
        SchedulerOptions(**bounds)
