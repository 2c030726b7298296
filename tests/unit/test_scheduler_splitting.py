"""A request larger than a batch is split over several, and its answer put together again."""

import asyncio
from typing import Any

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest, InferResponse
from tests.fixtures.gates import HeldRun, Recorder, Serving, make_request, serving
from tests.fixtures.manual_clock import clock, on_manual_clock, pass_time, settle
from tests.unit.test_scheduler_answers import TwoHeaded

pytestmark = pytest.mark.timeout(60)

NO_WATCHDOG = SchedulerOptions(watchdog_s=0.0)


def four_rows(lanes: int = 1) -> FakeBackend:
    """Return a fake whose batches have 4 rows at most."""
    return FakeBackend(FakeOptions(max_batch_rows=4, lanes=lanes))


def rows_of(run: HeldRun) -> list[tuple[str, int]]:
    """Return whose rows a run computes, and how many of each."""
    return [(request.id, request.rows) for request in run.batch.requests]


async def code_of(task: asyncio.Task[InferResponse]) -> Code:
    with pytest.raises(ServingError) as answer:
        await task
    return answer.value.code


@pytest.mark.parametrize("lanes", [1, 3])
@on_manual_clock
async def test_the_answer_of_a_request_split_by_rows_equals_the_whole_bit_for_bit(
    lanes: int,
) -> None:
    async with serving(four_rows(lanes)) as server:
        server.gate.open()
        requests = [make_request(rows, rows) for rows in (5, 10, 101)]
        tasks = [server.ask(request) for request in requests]
        for task, request in zip(tasks, requests, strict=True):
            assert await server.right(task, request)
        assert max(batch.rows for batch in server.backend.batches) == 4
        assert sum(batch.rows for batch in server.backend.batches) == 116


def ids(request: InferRequest) -> int:
    """Return how many ids a request holds."""
    return request.inputs["id_list_features.values"].size


@on_manual_clock
async def test_the_answer_of_a_request_split_by_ids_equals_the_whole_bit_for_bit() -> None:
    async with serving(options=SchedulerOptions(max_batch_ids=8)) as server:
        server.gate.open()
        request = make_request(50, 1)
        assert await server.right(server.ask(request), request)
        batches = server.backend.batches
        assert max(ids(batch.requests[0]) for batch in batches) <= 8
        assert sum(ids(batch.requests[0]) for batch in batches) == ids(request)


@on_manual_clock
async def test_a_row_with_more_ids_than_a_batch_may_have_is_an_invalid_request() -> None:
    async with serving(options=SchedulerOptions(max_batch_ids=3)) as server:
        request = make_request(20, 1)
        with pytest.raises(ServingError, match=r"row \d+ has [456] ids") as refusal:
            await server.ask(request)
        assert refusal.value.code is Code.INVALID_REQUEST
        assert server.ran == []


@on_manual_clock
async def test_a_request_of_more_rows_than_one_may_have_is_an_invalid_request() -> None:
    async with serving(four_rows(), SchedulerOptions(max_request_rows=9)) as server:
        with pytest.raises(ServingError, match="10 exceed the limit of 9 rows") as refusal:
            await server.ask(make_request(10, 1))
        assert refusal.value.code is Code.INVALID_REQUEST


@pytest.mark.parametrize("outputs", [("pair",), ("default", "pair"), ()])
@on_manual_clock
async def test_a_split_request_gets_the_outputs_it_asked_for(outputs: tuple[str, ...]) -> None:
    async with serving(TwoHeaded(FakeOptions(max_batch_rows=4))) as server:
        server.gate.open()
        request = make_request(11, 1, outputs=outputs)
        answer = await server.ask(request)
        assert tuple(answer.outputs) == (outputs or ("default", "pair"))
        score = server.backend.score(request)
        np.testing.assert_array_equal(answer.outputs["pair"], np.stack([score, score], axis=1))


@on_manual_clock
async def test_a_split_request_has_the_wait_for_its_first_batch_and_the_work_of_all() -> None:
    recorder = Recorder()
    async with serving(four_rows(), NO_WATCHDOG, recorder) as server:
        busy = await server.occupy()
        task = await server.asked(make_request(10, 1))
        await pass_time(0.5)
        busy.finish()
        for _ in range(3):
            run = await server.gate.began()
            await pass_time(1.0)
            run.finish()
        timing = (await task).timing
        runs = recorder.runs[1:]
        assert timing.queue_s == pytest.approx(0.5)
        assert timing.batch_rows == 4
        assert timing.compute_s == sum(run.compute_s for run in runs) > 0
        assert timing.gather_s == sum(run.gather_s for run in runs) > 0
        assert [run.rows for run in runs] == [4, 4, 2]
        assert [run.queue_s for run in runs] == [pytest.approx((wait,)) for wait in (0.5, 1.5, 2.5)]


async def begun(
    server: Serving, seed: int, **fields: Any
) -> tuple[HeldRun, asyncio.Task[InferResponse]]:
    """Ask for 20 rows; return the run of the first four, held."""
    task = await server.asked(make_request(20, seed, **fields))
    return await server.gate.began(), task


@on_manual_clock
async def test_a_split_request_cancelled_in_the_middle_runs_no_further() -> None:
    recorder = Recorder()
    async with serving(four_rows(), NO_WATCHDOG, recorder) as server:
        _, task = await begun(server, 1)
        small = make_request(2, 2)
        answer = await server.asked(small)
        task.cancel()
        await settle()
        server.gate.open()
        assert await server.right(answer, small)
        assert [rows_of(HeldRun(batch)) for batch in server.backend.batches] == [
            [("request-1", 4)],
            [("request-2", 2)],
        ]
        assert len(server.started) + len(recorder.drops) == 2


@on_manual_clock
async def test_a_split_request_whose_deadline_passes_in_the_middle_runs_no_further() -> None:
    recorder = Recorder()
    async with serving(four_rows(), NO_WATCHDOG, recorder) as server:
        run, task = await begun(server, 1, timeout_s=1.0)
        run.finish()
        await server.gate.began()
        await pass_time(1.0)
        assert task.done()
        assert await code_of(task) is Code.DEADLINE_EXCEEDED
        assert clock().timers() == []
        server.gate.open()
        small = make_request(2, 2)
        assert await server.right(server.ask(small), small)
        assert len(server.ran) == 3
        assert len(server.started) + len(recorder.drops) == 2


@on_manual_clock
async def test_a_split_request_whose_deadline_timer_is_late_runs_no_further() -> None:
    recorder = Recorder()
    async with serving(four_rows(), NO_WATCHDOG, recorder) as server:
        run, task = await begun(server, 1, timeout_s=1.0)
        clock().advance(2.0)  # the lane sees it before the loop does
        server.gate.open()
        run.finish()
        assert await code_of(task) is Code.DEADLINE_EXCEEDED
        await settle()
        assert recorder.drops == []  # it had begun


@on_manual_clock
async def test_a_split_request_fails_with_its_first_piece_to_fail_and_the_rest_never_runs() -> None:
    recorder = Recorder()
    async with serving(four_rows(), NO_WATCHDOG, recorder) as server:
        run, task = await begun(server, 1)
        run.finish()
        (await server.gate.began()).fail(RuntimeError("boom"))
        assert await code_of(task) is Code.INTERNAL
        server.gate.open()
        small = make_request(2, 2)
        assert await server.right(server.ask(small), small)
        # At most the piece that the lane took before the loop heard of the failure.
        assert 3 <= len(server.ran) <= 4
        assert recorder.queued_rows[-1] == 0
        assert len(server.started) + len(recorder.drops) == 2


@on_manual_clock
async def test_a_failing_piece_leaves_its_neighbours_untouched() -> None:
    async with serving(four_rows()) as server:
        busy = await server.occupy()
        large = await server.asked(make_request(6, 1))
        small = make_request(2, 2)
        answer = await server.asked(small)
        busy.finish()
        (await server.gate.began()).finish()
        shared = await server.gate.began()
        assert rows_of(shared) == [("request-1", 2), ("request-2", 2)]
        shared.fail(RuntimeError("boom"))
        (await server.gate.began()).fail(RuntimeError("boom"))
        assert rows_of(await server.gate.began()) == [("request-2", 2)]
        server.gate.open()
        assert await code_of(large) is Code.INTERNAL
        assert await server.right(answer, small)


@on_manual_clock
async def test_small_requests_get_through_between_the_pieces_of_a_large_one() -> None:
    async with serving(four_rows(), NO_WATCHDOG) as server:
        run, large = await begun(server, 1)
        await pass_time(0.01)
        small = make_request(1, 2)
        answer = await server.asked(small)
        server.gate.open()
        run.finish()
        assert await server.right(answer, small)
        assert await server.right(large, make_request(20, 1))
        # After the piece that runs, the one gathered ahead, and the one that came before it.
        assert server.ran[3] == ["request-2", "request-1"]
        assert len(server.ran) == 6


@on_manual_clock
async def test_two_large_requests_take_turns() -> None:
    async with serving(four_rows(), NO_WATCHDOG) as server:
        busy = await server.occupy()
        requests = [make_request(12, seed) for seed in (1, 2)]
        tasks = [await server.asked(request) for request in requests]
        server.gate.open()
        busy.finish()
        for task, request in zip(tasks, requests, strict=True):
            assert await server.right(task, request)
        # The first piece had been gathered, and the second lined up, before the other came.
        assert server.ran[1:] == [[f"request-{seed}"] for seed in (1, 1, 2, 1, 2, 2)]
