"""What an answer holds, and what the observer hears."""

import time
from dataclasses import replace

import numpy as np
import pytest
import uvloop

from backends.fake import FakeBackend, FakeOptions
from scheduler.types import Batch, ModelSpec, TensorSpec
from tests.fixtures.gates import Outputs, Recorder, make_request, serving
from tests.fixtures.manual_clock import on_manual_clock, pass_time, settle

pytestmark = pytest.mark.timeout(60)


class TwoHeaded(FakeBackend):
    """A fake with a second output, two numbers a row."""

    @property
    def spec(self) -> ModelSpec:
        spec = super().spec
        pair = TensorSpec("pair", np.dtype(np.float32), ("rows", 2))
        return replace(spec, outputs=(*spec.outputs, pair))

    def run(self, batch: Batch) -> Outputs:
        scores = super().run(batch)["default"]
        return {"default": scores, "pair": np.stack([scores, scores], axis=1)}


@on_manual_clock
async def test_requests_in_one_batch_get_only_the_outputs_each_asked_for() -> None:
    async with serving(TwoHeaded(FakeOptions())) as server:
        busy = await server.occupy()
        wanted: list[tuple[str, ...]] = [("default",), ("pair",), ()]
        requests = [make_request(2, seed, outputs=names) for seed, names in enumerate(wanted)]
        tasks = [server.ask(request) for request in requests]
        await settle()
        server.gate.open()
        busy.finish()
        answers = [(await task).outputs for task in tasks]
        assert [list(answer) for answer in answers] == [["default"], ["pair"], ["default", "pair"]]
        np.testing.assert_array_equal(answers[1]["pair"][:, 0], server.backend.score(requests[1]))
        assert len(server.ran) == 2


@on_manual_clock
async def test_an_answer_names_model_and_version_and_says_where_its_time_went() -> None:
    recorder = Recorder()
    async with serving(observer=recorder) as server:
        busy = await server.occupy()
        tasks = [await server.asked(make_request(rows, rows)) for rows in (2, 3)]
        await pass_time(0.5)
        server.gate.open()
        busy.finish()
        answers = [await task for task in tasks]
        for answer in answers:
            assert (answer.model, answer.version) == ("fake", "1")
            assert answer.timing.batch_rows == 5
            assert answer.timing.compute_s > 0
        assert answers[0].timing.queue_s >= answers[1].timing.queue_s > 0
        record = recorder.runs[-1]
        assert (record.rows, record.lane) == (5, 0)
        assert record.queue_s == tuple(answer.timing.queue_s for answer in answers)
        assert record.compute_s == answers[0].timing.compute_s


@pytest.mark.parametrize("outputs", [(), ("pair",)])
@on_manual_clock
async def test_zero_rows_get_an_empty_answer_with_the_outputs_asked_for_and_no_run(
    outputs: tuple[str, ...],
) -> None:
    async with serving(TwoHeaded(FakeOptions())) as server:
        response = await server.engine.infer(make_request(0, outputs=outputs))
        assert set(response.outputs) == set(outputs or ("default", "pair"))
        assert response.outputs["pair"].shape == (0, 2)
        assert response.outputs["pair"].dtype == np.float32
        assert response.timing.batch_rows == 0
        assert server.ran == []


@on_manual_clock
async def test_the_observer_always_knows_how_many_rows_wait() -> None:
    recorder = Recorder()
    async with serving(observer=recorder) as server:
        busy = await server.occupy()
        assert recorder.queued_rows[-1] == 0
        cancelled = await server.asked(make_request(2, 1))
        await server.asked(make_request(3, 2, timeout_s=1.0))
        assert recorder.queued_rows[-1] == 5
        cancelled.cancel()
        await settle()
        assert recorder.queued_rows[-1] == 3
        await pass_time(1.0)
        assert recorder.queued_rows[-1] == 0
        busy.finish()


@pytest.mark.parametrize("timeout_s", [1.0, 60.0])
@on_manual_clock
async def test_the_observer_knows_how_many_rows_wait_after_a_split_request_has_ended_early(
    timeout_s: float,
) -> None:
    recorder = Recorder()
    backend = FakeBackend(FakeOptions(max_batch_rows=4))
    async with serving(backend, observer=recorder) as server:
        task = await server.asked(make_request(20, 1, timeout_s=timeout_s))
        await server.gate.began()
        assert recorder.queued_rows[-1] > 0
        await pass_time(1.0)
        task.cancel()
        await settle()
        assert recorder.queued_rows[-1] == 0


def test_time_in_the_queue_is_exact_also_on_uvloop_whose_clock_ticks_in_milliseconds() -> None:
    async def check_once() -> None:
        async with serving() as server:
            busy = await server.occupy()
            before_s = time.perf_counter()
            task = await server.asked(make_request(1, 1))
            queued_s = time.perf_counter()
            await settle()
            released_s = time.perf_counter()
            server.gate.open()
            busy.finish()
            queue_s = (await task).timing.queue_s
            assert released_s - queued_s <= queue_s <= time.perf_counter() - before_s

    for _ in range(20):
        uvloop.run(check_once())
