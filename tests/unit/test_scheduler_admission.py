"""Who gets in, who is refused, and what the refusal says."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.options import SchedulerOptions
from scheduler.types import Array, InferRequest
from tests.fixtures.gates import Recorder, make_request, serving
from tests.fixtures.manual_clock import on_manual_clock

pytestmark = pytest.mark.timeout(20)


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
