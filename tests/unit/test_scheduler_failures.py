"""What fails, whom it fails, and that everybody is answered."""

import ast
import asyncio
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import scheduler.scheduler
from app.compiled.use import is_compiled
from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.lanes import Job
from scheduler.observer import Computed, Observer
from scheduler.options import SchedulerOptions
from scheduler.queue import RequestQueue
from scheduler.types import Batch, InferRequest, InferResponse, ModelSpec
from scheduler.waiting import Taken
from tests.fixtures.gates import Serving, TwistedBackend, make_request, serving
from tests.fixtures.manual_clock import on_manual_clock, pass_time, settle

pytestmark = pytest.mark.timeout(60)
thread_may_die = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


async def code_of(task: asyncio.Task[InferResponse]) -> Code | None:
    """Return the code ``task`` failed with, None for an answer; any other error is a bug."""
    (result,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(result, InferResponse):
        return None
    assert isinstance(result, ServingError), repr(result)
    return result.code


@on_manual_clock
async def test_invariant_6_a_backend_that_raises_answers_with_internal_and_the_lane_lives_on() -> (
    None
):
    async with serving() as server:
        task = server.ask(make_request(1, 1))
        (await server.gate.began()).fail(RuntimeError("boom"))
        assert await code_of(task) is Code.INTERNAL
        assert server.engine.ready
        server.gate.open()
        request = make_request(3, 2)
        assert await server.right(server.ask(request), request)


@on_manual_clock
async def test_invariant_7_only_the_guilty_request_of_a_failing_batch_fails() -> None:
    async with serving() as server:
        busy = await server.occupy()
        requests = [make_request(seed + 1, seed) for seed in range(8)]
        tasks = [await server.asked(request) for request in requests]
        busy.finish()
        for _ in range(7):  # the eight, then twice as many halves as there are halvings
            run = await server.gate.began()
            if requests[3] in run.batch.requests:
                run.fail(ValueError("one of you is bad"))
            else:
                run.finish()
        assert await code_of(tasks[3]) is Code.INTERNAL
        for seed in (0, 1, 2, 4, 5, 6, 7):
            assert await server.right(tasks[seed], requests[seed])
        assert server.engine.live


@on_manual_clock
async def test_a_serving_error_raised_by_the_backend_is_the_answer() -> None:
    async with serving() as server:
        task = server.ask(make_request(1, 1))
        (await server.gate.began()).fail(ServingError(Code.UNSUPPORTED, "no such head"))
        with pytest.raises(ServingError, match="no such head") as answer:
            await task
        assert answer.value.code is Code.UNSUPPORTED


@pytest.mark.parametrize(
    "twist",
    [
        lambda batch, outputs: {"default": outputs["default"][:-1]},
        lambda batch, outputs: {"score": outputs["default"]},
        lambda batch, outputs: {"default": outputs["default"].astype(np.float64)},
        lambda batch, outputs: {**outputs, "debug": np.float32(1)},
    ],
    ids=["a row too few", "wrong name", "wrong dtype", "an output more"],
)
@on_manual_clock
async def test_invariant_6_wrong_outputs_never_kill_a_lane(twist: Any) -> None:
    def twist_marked(batch: Batch, outputs: Any) -> Any:
        return twist(batch, outputs) if batch.requests[0].id == "request-1" else outputs

    async with serving(TwistedBackend(FakeOptions(), twist_marked)) as server:
        server.gate.open()
        assert await code_of(server.ask(make_request(2, 1))) in (None, Code.INTERNAL)
        request = make_request(2, 2)
        assert await server.right(server.ask(request), request)
        assert server.engine.ready


@pytest.mark.parametrize("error", [IndexError("secret"), SystemExit("secret")], ids=repr)
@on_manual_clock
async def test_a_check_that_raises_anything_fails_its_own_request_only(
    error: BaseException,
) -> None:
    class Unsure(FakeBackend):
        def check(self, request: InferRequest) -> None:
            if request.id == "request-1":
                raise error

    async with serving(Unsure(FakeOptions())) as server:
        server.gate.open()
        with pytest.raises(ServingError) as answer:
            await server.ask(make_request(1, 1))
        assert answer.value.code is Code.INTERNAL
        assert "secret" not in answer.value.detail
        request = make_request(1, 2)
        assert await server.right(server.ask(request), request)


@thread_may_die
@on_manual_clock
async def test_invariant_6_a_dying_lane_answers_everybody_and_turns_readiness_off() -> None:
    async with serving() as server:
        changes: list[tuple[bool, bool]] = []
        server.engine.watch(lambda: changes.append((server.engine.ready, server.engine.live)))
        running = server.ask(make_request(1, 1))
        run = await server.gate.began()
        queued = [await server.asked(make_request(1, seed, timeout_s=60.0)) for seed in (2, 3)]
        run.fail(SystemExit())
        for task in (running, *queued):
            assert await code_of(task) is Code.INTERNAL
        assert changes == [(False, False)]
        assert await code_of(server.ask(make_request(1, 4))) is Code.UNAVAILABLE
        assert server.ran == [["request-1"]]


@thread_may_die
@on_manual_clock
async def test_a_dying_lane_answers_also_those_who_run_on_another_lane() -> None:
    async with serving(FakeBackend(FakeOptions(lanes=2))) as server:
        first = server.ask(make_request(1, 1))
        one = await server.gate.began()
        second = server.ask(make_request(1, 2))
        other = await server.gate.began()
        one.fail(SystemExit())
        assert await code_of(first) is Code.INTERNAL
        assert await code_of(second) is Code.INTERNAL
        other.finish()  # its late answer is for nobody
        await settle()
        assert not server.engine.live


class FaultyObserver(Observer):
    """Raise at the one observation called ``fault``."""

    def __init__(self) -> None:
        self.fault = ""

    def queued(self, spec: ModelSpec, rows: int, requests: int, batches: int) -> None:
        self._raise_at("queued")

    def dropped(self, model: str, reason: str) -> None:
        self._raise_at(reason)

    def computed(self, record: Computed) -> None:
        self._raise_at("computed")

    def _raise_at(self, what: str) -> None:
        if what == self.fault:
            raise RuntimeError(f"observer: {what}")


async def everybody(server: Serving, meanwhile: Callable[[], None]) -> None:
    """Run, queue, miss a deadline, cancel, be refused; return when all have ended."""
    busy = await server.occupy()
    meanwhile()
    await server.asked(make_request(4, 1))
    await server.asked(make_request(2, 2, timeout_s=1.0))
    (await server.asked(make_request(2, 3))).cancel()
    await server.asked(make_request(8, 4))
    await pass_time(1.0)
    server.gate.open()
    busy.finish()
    await asyncio.wait(server.tasks)


@pytest.mark.parametrize("fault", ["queued", "deadline", "cancelled", "queue_full", "computed"])
@on_manual_clock
async def test_invariant_6_an_observer_that_raises_leaves_nobody_unanswered(fault: str) -> None:
    observer = FaultyObserver()
    backend = FakeBackend(FakeOptions(max_batch_rows=8))
    async with serving(backend, SchedulerOptions(max_queue_rows=8), observer) as server:
        await everybody(server, lambda: setattr(observer, "fault", fault))
        for task in server.tasks:
            assert task.cancelled() or await code_of(task) in (*Code, None)
        observer.fault = ""
        answered = await server.asked(make_request(1, 5))
        assert await code_of(answered) in (None, Code.UNAVAILABLE)


@pytest.mark.skipif(is_compiled(), reason="what is compiled is not broken from outside")
@on_manual_clock
async def test_invariant_6_a_fault_in_the_batcher_itself_answers_everybody_and_fails_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as server:
        busy = await server.occupy()
        tasks = [await server.asked(make_request(1, seed)) for seed in range(3)]

        def broken(pieces: object) -> Job:
            raise AssertionError("a bug of ours")

        monkeypatch.setattr(scheduler.scheduler, "Job", broken)
        busy.finish()
        for task in tasks:
            assert await code_of(task) is Code.INTERNAL
        assert not server.engine.ready
        assert not server.engine.live


@pytest.mark.skipif(is_compiled(), reason="what is compiled is not broken from outside")
@on_manual_clock
async def test_a_queue_that_gives_nothing_fails_the_model_instead_of_spinning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as server:
        monkeypatch.setattr(RequestQueue, "take", lambda *_, **__: Taken())
        assert await code_of(server.ask(make_request(1, 1))) is Code.INTERNAL
        assert not server.engine.live


def broad_handlers(path: pathlib.Path) -> list[str]:
    """Return the functions of one file that hold a bare or broad ``except``."""
    broad = (None, "Exception", "BaseException")
    return [
        function.name
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in function.body
        for handler in ast.walk(node)
        if isinstance(handler, ast.ExceptHandler)
        if (handler.type and ast.unparse(handler.type)) in broad
    ]


def test_invariant_9_broad_excepts_stand_around_backend_calls_and_in_supervision_only() -> None:
    found = {
        (path.name, function)
        for path in pathlib.Path(scheduler.__file__).parent.glob("*.py")
        if path.name != "execute.py"
        for function in broad_handlers(path)
    }
    assert found == {
        ("asking.py", "_run"),  # of a task: what it raised is the answer
        ("replies.py", "give"),  # around whoever is told an answer, on the batcher's own thread
        ("runner.py", "run_inline"),  # around a whole run: what would end a lane's thread
        ("scheduler.py", "_guard"),
        ("threads.py", "_told"),  # carries what a thread raised to whoever awaits it
        ("threads.py", "target"),
    }
