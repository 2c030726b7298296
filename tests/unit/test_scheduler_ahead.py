"""A full batch is gathered while the lanes are busy. Gathering and computing have a gate each."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.backend import Compute
from scheduler.errors import Code, ServingError
from scheduler.options import SchedulerOptions
from scheduler.types import Batch, InferResponse
from tests.fixtures.gates import Gate, HeldRun, Recorder, Serving, make_request, serving
from tests.fixtures.manual_clock import clock, on_manual_clock, pass_time, settle, turn_until

pytestmark = pytest.mark.timeout(60)


class TwoStep(FakeBackend):
    """A fake whose gathering can be held and failed too, in ``before_prepare``."""

    def __init__(self, lanes: int = 1) -> None:
        super().__init__(FakeOptions(lanes=lanes, max_batch_rows=4))
        self.before_prepare: Callable[[Batch], None] = lambda batch: None
        self.gathered: list[list[str]] = []
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def prepare(self, batch: Batch) -> Compute:
        self.gathered.append([request.id for request in batch.requests])
        self.before_prepare(batch)
        return super().prepare(batch)


class TwoGates:
    """A server whose every lane is busy with a run in ``busy``; batches have 4 rows."""

    def __init__(self, server: Serving, backend: TwoStep, recorder: Recorder) -> None:
        self.server = server
        self.backend = backend
        self.recorder = recorder
        self.busy: list[HeldRun] = []

    async def gathered(self, *seeds: int) -> list[asyncio.Task[InferResponse]]:
        """Fill the next batch with requests of equal size; return once it has been gathered."""
        rows = 4 // len(seeds)
        tasks = [self.server.ask(make_request(rows, seed, timeout_s=60.0)) for seed in seeds]
        wanted = [f"request-{seed}" for seed in seeds]
        await turn_until(lambda: wanted in self.backend.gathered)
        return tasks


def die(batch: Batch) -> None:
    raise SystemExit


@contextlib.asynccontextmanager
async def busy_lanes(lanes: int = 1, watchdog_s: float = 0.0) -> AsyncIterator[TwoGates]:
    """Serve with all lanes held."""
    backend, recorder = TwoStep(lanes), Recorder()
    async with serving(backend, SchedulerOptions(watchdog_s=watchdog_s), recorder) as server:
        state = TwoGates(server, backend, recorder)
        for _ in range(lanes):
            state.busy.append(await server.occupy())
        backend.gathered.clear()
        yield state


@on_manual_clock
async def test_a_full_batch_is_gathered_before_the_running_one_has_been_computed() -> None:
    async with busy_lanes() as state:
        tasks = await state.gathered(1, 2)
        assert state.server.ran == [["request-99"]]
        state.server.gate.open()
        await asyncio.gather(*tasks)
        assert state.backend.gathered == [["request-1", "request-2"]]  # and not once more
        assert state.server.ran[1:] == [["request-1", "request-2"]]


@on_manual_clock
async def test_a_batch_that_is_not_full_is_not_gathered_so_that_later_arrivals_join_it() -> None:
    async with busy_lanes() as state:
        first = await state.server.asked(make_request(3, 1))
        assert state.recorder.queued_rows[-1] == 3
        second = await state.server.asked(make_request(1, 2))
        assert state.recorder.queued_rows[-1] == 0
        state.server.gate.open()
        await asyncio.gather(first, second)
        assert state.backend.gathered == [["request-1", "request-2"]]


@on_manual_clock
async def test_one_batch_is_gathered_ahead_and_the_rest_waits_in_the_queue() -> None:
    async with busy_lanes() as state:
        tasks = await state.gathered(1)
        tasks += [await state.server.asked(make_request(4, seed)) for seed in (2, 3)]
        assert state.recorder.queued_rows[-1] == 8
        state.busy[0].finish()
        run = await state.server.gate.began()
        assert [request.id for request in run.batch.requests] == ["request-1"]
        await turn_until(lambda: ["request-2"] in state.backend.gathered)
        assert state.recorder.queued_rows[-1] == 4
        state.server.gate.open()
        await asyncio.gather(*tasks)


@on_manual_clock
async def test_what_is_cancelled_after_being_gathered_never_runs_and_its_neighbours_do() -> None:
    async with busy_lanes() as state:
        tasks = await state.gathered(1, 2)
        tasks[0].cancel()
        await settle()
        state.server.gate.open()
        assert await state.server.right(tasks[1], make_request(2, 2))
        assert state.server.ran[1:] == [["request-2"]]
        assert state.recorder.drops == ["cancelled"]
        assert len(clock().timers()) == 0


@on_manual_clock
async def test_what_expires_after_being_gathered_never_runs_and_its_neighbours_do() -> None:
    async with busy_lanes() as state:
        late = await state.server.asked(make_request(3, 1, timeout_s=0.25))
        patient = await state.server.asked(make_request(1, 2))
        await turn_until(lambda: ["request-1", "request-2"] in state.backend.gathered)
        await pass_time(0.25)
        with pytest.raises(ServingError) as answer:
            await late
        assert answer.value.code is Code.DEADLINE_EXCEEDED
        state.server.gate.open()
        assert await state.server.right(patient, make_request(1, 2))
        assert state.server.ran[1:] == [["request-2"]]
        assert state.recorder.drops == ["deadline"]


@on_manual_clock
async def test_a_gathered_batch_that_nobody_wants_any_more_frees_its_lane_unrun() -> None:
    async with busy_lanes() as state:
        for task in await state.gathered(1, 2):
            task.cancel()
        await settle()
        state.server.gate.open()
        request = make_request(2, 3)
        assert await state.server.right(state.server.ask(request), request)
        assert state.server.ran[1:] == [["request-3"]]
        assert state.recorder.drops == ["cancelled", "cancelled"]


@on_manual_clock
async def test_gathering_that_fails_ahead_is_tried_again_when_the_batch_runs() -> None:
    async with busy_lanes() as state:

        def fail_off_lanes(batch: Batch) -> None:
            if threading.current_thread().name.endswith("gather"):
                raise MemoryError("staging is full")

        state.backend.before_prepare = fail_off_lanes
        tasks = await state.gathered(1, 2)
        state.server.gate.open()
        for seed, task in zip((1, 2), tasks, strict=True):
            assert await state.server.right(task, make_request(2, seed))
        assert state.backend.gathered == [["request-1", "request-2"]] * 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@on_manual_clock
async def test_the_death_of_the_gathering_thread_answers_everybody() -> None:
    async with busy_lanes() as state:
        state.backend.before_prepare = die
        for task in [*await state.gathered(1, 2), *state.server.tasks]:
            with pytest.raises(ServingError) as answer:
                await task
            assert answer.value.code is Code.INTERNAL
        assert not state.server.engine.ready
        assert not state.server.engine.live


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@on_manual_clock
async def test_a_model_whose_gathering_thread_died_is_closed_none_the_less() -> None:
    async with busy_lanes() as state:
        state.backend.before_prepare = die
        await asyncio.gather(*await state.gathered(1, 2), return_exceptions=True)
        state.server.gate.open()
        await state.server.engine.close(grace_s=1.0)
        assert state.backend.closed


@pytest.mark.parametrize("first_free", [0, 1])
@on_manual_clock
async def test_a_gathered_batch_goes_to_whichever_lane_is_free_first(first_free: int) -> None:
    async with busy_lanes(lanes=2) as state:
        (task,) = await state.gathered(1)
        state.busy[first_free].finish()
        run = await state.server.gate.began()  # the other lane is held still
        run.finish()
        assert await state.server.right(task, make_request(4, 1))
        assert not all(task.done() for task in state.server.tasks)


@on_manual_clock
async def test_closing_lets_a_batch_that_is_being_gathered_run() -> None:
    async with busy_lanes() as state:
        state.backend.before_prepare = gate = Gate()
        tasks = await state.gathered(1, 2)
        closing = asyncio.create_task(state.server.engine.close(grace_s=60.0))
        await settle()
        state.server.gate.open()
        gate.open()
        await closing
        for seed, task in zip((1, 2), tasks, strict=True):
            assert await state.server.right(task, make_request(2, seed))


@on_manual_clock
async def test_what_is_cut_off_while_it_is_gathered_counts_as_dropped() -> None:
    async with busy_lanes() as state:
        state.backend.before_prepare = gate = Gate()
        tasks = await state.gathered(1, 2)
        closing = asyncio.create_task(state.server.engine.close(grace_s=0.0))
        await asyncio.gather(*tasks, return_exceptions=True)
        state.server.gate.open()
        gate.open()
        await closing
        await settle()
        assert state.recorder.drops == ["draining", "draining"]


@on_manual_clock
async def test_gathering_that_never_ends_is_seen_by_the_watchdog() -> None:
    async with busy_lanes(watchdog_s=5.0) as state:
        state.backend.before_prepare = gate = Gate()
        tasks = await state.gathered(1, 2)
        state.busy[0].finish()
        await state.server.tasks[0]
        for _ in range(3):
            await pass_time(5.0)
        failed = [task.done() for task in tasks]
        gate.open()
        state.server.gate.open()
        assert failed == [True, True]
        assert not state.server.engine.ready
