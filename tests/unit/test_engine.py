"""Loading and opening, which model a request is for, and who watches."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.engine import Engine
from scheduler.errors import Code, LoadError, ServingError
from scheduler.observer import Answered, Observer
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest
from tests.fixtures.gates import Watched, make_request, serving
from tests.fixtures.manual_clock import on_manual_clock, settle

pytestmark = pytest.mark.timeout(60)


def engine_of(observer: Observer | None = None) -> Engine:
    return Engine(SchedulerOptions(), observer or Observer())


async def refusal_of(engine: Engine, request: InferRequest) -> ServingError:
    with pytest.raises(ServingError) as refusal:
        await engine.infer(request)
    return refusal.value


@on_manual_clock
async def test_a_model_loads_off_the_loop_and_is_served_once_the_engine_opens() -> None:
    engine, backend = engine_of(), Watched()
    await engine.load(backend)
    assert backend.thread is not threading.current_thread()
    assert (engine.started, engine.ready, engine.live) == (False, False, True)
    refusal = await refusal_of(engine, make_request(1))
    assert refusal.code is Code.UNAVAILABLE
    assert refusal.retry_after_s is not None
    engine.open()
    assert (engine.started, engine.ready, engine.live) == (True, True, True)
    await engine.infer(make_request(1))
    await engine.close(grace_s=1.0)
    assert backend.calls == ["load", "check", "close"]
    assert engine.live  # stopping is no failure


@on_manual_clock
async def test_the_loop_serves_on_while_a_model_loads() -> None:
    engine, backend = engine_of(), Watched()
    backend.held.clear()
    loading = asyncio.create_task(engine.load(backend))
    await settle()
    assert not loading.done()
    assert engine.specs() == ()
    backend.held.set()
    await loading
    assert [spec.name for spec in engine.specs()] == ["fake"]
    await engine.close(grace_s=1.0)


@on_manual_clock
async def test_a_model_that_cannot_load_says_why_and_is_not_served() -> None:
    engine = engine_of()
    with pytest.raises(LoadError, match="no such file"):
        await engine.load(Watched(error=LoadError("model.pt: no such file")))
    assert engine.specs() == ()
    await engine.close(grace_s=1.0)


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), StopIteration("boom"), SystemExit("boom")], ids=repr
)
@on_manual_clock
async def test_whatever_a_backends_load_raises_becomes_a_load_error(error: BaseException) -> None:
    with pytest.raises(LoadError, match="boom") as refusal:
        await engine_of().load(Watched(error=error))
    # What mypyc compiles knows no `raise from`: its errors keep the context alone.
    assert error in (refusal.value.__cause__, refusal.value.__context__)


@on_manual_clock
async def test_a_load_that_is_cancelled_ends_without_a_trace() -> None:
    engine, backend = engine_of(), Watched()
    backend.held.clear()
    loading = asyncio.create_task(engine.load(backend))
    await backend.until("load")
    loading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await loading
    backend.held.set()
    assert backend.thread is not None
    backend.thread.join()  # an exception on the thread would fail this test
    assert engine.specs() == ()


@on_manual_clock
async def test_two_models_of_one_name_are_not_served() -> None:
    engine = engine_of()
    await engine.load(Watched())
    with pytest.raises(LoadError, match="fake"):
        await engine.load(Watched())
    await engine.close(grace_s=1.0)


@pytest.mark.parametrize(("asked", "rows"), [(1, 1024), (3000, 3000), (10**6, 65_536)])
@on_manual_clock
async def test_the_spec_served_says_how_many_rows_one_request_may_have(
    asked: int, rows: int
) -> None:
    engine = Engine(SchedulerOptions(max_request_rows=asked), Observer())
    await engine.load(Watched())
    engine.open()
    assert engine.spec("fake").max_request_rows == rows  # a batch at least, a queue at most
    await engine.close(grace_s=1.0)


@contextlib.asynccontextmanager
async def two_models(one: Watched, two: Watched) -> AsyncIterator[Engine]:
    engine = engine_of()
    await engine.load(one)
    await engine.load(two)
    engine.open()
    yield engine
    await engine.close(grace_s=1.0)


@on_manual_clock
async def test_each_request_reaches_the_model_it_names() -> None:
    one, two = Watched("one"), Watched("two")
    async with two_models(one, two) as engine:
        assert (await engine.infer(make_request(1, model="two"))).model == "two"
        assert (len(one.batches), len(two.batches)) == (0, 1)
        assert [spec.name for spec in engine.specs()] == ["one", "two"]
        assert engine.spec("one").name == "one"


@pytest.mark.parametrize("name", ["three", ""])
@on_manual_clock
async def test_a_name_that_is_not_served_is_not_found_and_the_refusal_lists_those_that_are(
    name: str,
) -> None:
    async with two_models(Watched("one"), Watched("two")) as engine:
        refusal = await refusal_of(engine, make_request(1, model=name))
        assert refusal.code is Code.MODEL_NOT_FOUND
        assert "one, two" in refusal.detail
        with pytest.raises(ServingError):
            engine.spec(name)


@on_manual_clock
async def test_an_empty_name_is_the_only_model() -> None:
    async with serving() as server:
        server.gate.open()
        assert server.engine.spec("").name == "fake"
        assert (await server.ask(make_request(1, model=""))).model == "fake"


@on_manual_clock
async def test_watchers_hear_of_every_change_until_they_undo() -> None:
    engine = engine_of()
    heard: list[str] = []
    undo = engine.watch(lambda: heard.append(f"first {engine.ready}"))
    engine.watch(lambda: heard.append("second"))
    engine.open()
    assert heard == ["first True", "second"]
    undo()
    engine.drain()
    assert heard == ["first True", "second", "second"]
    await engine.close(grace_s=0.0)


@on_manual_clock
async def test_a_watcher_may_stop_watching_while_it_is_told() -> None:
    engine = engine_of()
    heard: list[str] = []

    def once() -> None:
        heard.append("once")
        undo()

    undo = engine.watch(once)
    engine.watch(lambda: heard.append("always"))
    engine.open()
    engine.drain()
    assert heard == ["once", "always", "always"]


def test_an_observer_that_watches_nothing_exposes_nothing() -> None:
    observer = Observer()
    observer.answered(Answered("http", "fake", 1, None, 0.1))
    assert observer.exposition("text/plain") == (b"", "text/plain; charset=utf-8")


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a\n"])
async def test_a_name_that_cannot_stand_in_a_url_is_refused_at_load(name: str) -> None:
    engine = Engine(SchedulerOptions(), Observer())
    with pytest.raises(LoadError, match="model name"):
        await engine.load(FakeBackend(FakeOptions(name=name)))


async def test_a_backend_without_lanes_is_refused_at_load() -> None:
    class NoLanes(FakeBackend):
        @property
        def lanes(self) -> int:
            return 0

    engine = Engine(SchedulerOptions(), Observer())
    with pytest.raises(LoadError, match="lanes"):
        await engine.load(NoLanes(FakeOptions()))


@on_manual_clock
async def test_cutting_off_answers_everybody_and_lets_close_end_before_its_grace() -> None:
    async with serving() as server:
        running = await server.asked(make_request(1, seed=1))
        run = await server.gate.began()
        waiting = await server.asked(make_request(2, seed=2))
        closing = asyncio.create_task(server.engine.close(grace_s=100.0))
        await settle()
        server.engine.cut_off()
        for task in (running, waiting):
            with pytest.raises(ServingError) as answer:
                await task
            assert answer.value.code is Code.UNAVAILABLE
        run.finish()
        await closing
