"""Several versions of a model: load, swap and unload while traffic flows."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from scheduler.engine import Engine
from scheduler.errors import Code, LoadError, ServingError
from scheduler.models import not_served
from scheduler.options import SchedulerOptions
from scheduler.types import InferResponse
from tests.fixtures.gates import Gate, Recorder, Watched, make_request
from tests.fixtures.manual_clock import on_manual_clock, settle

pytestmark = pytest.mark.timeout(60)


@contextlib.asynccontextmanager
async def engine_over(
    *backends: Watched, recorder: Recorder | None = None
) -> AsyncIterator[Engine]:
    """Serve ``backends``, loaded in this order."""
    engine = Engine(SchedulerOptions(watchdog_s=0.0), recorder or Recorder())
    for backend in backends:
        await engine.load(backend)
    engine.open()
    try:
        yield engine
    finally:
        await engine.close(grace_s=0.0)


def versions(engine: Engine) -> list[str]:
    return [spec.version for spec in engine.specs()]


async def version_for(engine: Engine, version: str = "") -> str:
    """Return the version that answers a request for ``version``."""
    return (await engine.infer(make_request(1, version=version))).version


async def not_found(engine: Engine, version: str) -> str:
    with pytest.raises(ServingError) as refusal:
        await version_for(engine, version)
    assert refusal.value.code is Code.MODEL_NOT_FOUND
    return refusal.value.detail


class Traffic:
    """Requests to one version's backend, whose runs wait in ``gate``."""

    def __init__(self, engine: Engine, backend: Watched) -> None:
        self._engine = engine
        self._backend = backend
        self.gate = backend.before_run = Gate()
        self.tasks: list[asyncio.Task[InferResponse]] = []

    async def arrives(self, *seeds: int) -> None:
        """Ask once for each seed; the requests are with a scheduler on return."""
        for seed in seeds:
            self.tasks.append(asyncio.create_task(self._engine.infer(make_request(1, seed))))
        await settle()

    async def answered_by(self) -> list[str]:
        """Return the version that answered each request, in the order of asking."""
        return [answer.version for answer in await asyncio.gather(*self.tasks)]


@on_manual_clock
async def test_requests_reach_the_version_they_name_and_else_the_one_loaded_last() -> None:
    one, two = Watched(version="1"), Watched(version="2")
    async with engine_over(one, two) as engine:
        assert versions(engine) == ["1", "2"]
        assert [await version_for(engine, version) for version in ("1", "2", "")] == ["1", "2", "2"]
        assert (len(one.batches), len(two.batches)) == (1, 2)
        assert engine.spec("fake", "1").version == "1"
        assert engine.spec("", "1").version == "1"


@on_manual_clock
async def test_a_version_that_is_not_served_is_not_found_and_the_refusal_lists_those_that_are() -> (
    None
):
    async with engine_over(Watched(version="1"), Watched(version="2")) as engine:
        detail = await not_found(engine, "3")
        assert detail == "no model 'fake' of version '3'; served: fake 1, fake 2"


@on_manual_clock
async def test_a_second_version_comes_while_the_first_is_busy_and_takes_no_request_from_it() -> (
    None
):
    one, two = Watched(version="1"), Watched(version="2")
    async with engine_over(one) as engine:
        traffic = Traffic(engine, one)
        await traffic.arrives(1, 2)
        await engine.load(two)
        assert await version_for(engine) == "2"
        traffic.gate.open()
        assert await traffic.answered_by() == ["1", "1"]


@on_manual_clock
async def test_a_version_that_is_loaded_already_is_refused_and_serves_on() -> None:
    async with engine_over(Watched(version="1")) as engine:
        with pytest.raises(LoadError, match="'fake' version '1' is loaded already"):
            await engine.load(Watched(version="1"))
        assert await version_for(engine, "1") == "1"


@on_manual_clock
async def test_a_backend_refused_after_it_was_loaded_is_closed() -> None:
    async with engine_over(Watched(version="1")) as engine:
        second = Watched(version="1")
        with pytest.raises(LoadError):
            await engine.load(second)
        assert second.calls == ["load", "close"]


@on_manual_clock
async def test_unloading_one_version_leaves_the_others_and_the_one_before_serves_by_default() -> (
    None
):
    one, two = Watched(version="1"), Watched(version="2")
    async with engine_over(one, two) as engine:
        await engine.unload("fake", "2")
        assert await version_for(engine) == "1"
        assert two.calls[-1] == "close"
        assert "close" not in one.calls
        await engine.unload("fake", "1")
        assert engine.specs() == ()
        await not_found(engine, "")


@on_manual_clock
async def test_unloading_a_model_unloads_every_version_and_answers_what_it_has_admitted() -> None:
    recorder = Recorder()
    one, two = Watched(version="1"), Watched(version="2")
    async with engine_over(one, two, recorder=recorder) as engine:
        traffic = Traffic(engine, two)
        await traffic.arrives(1)
        await traffic.gate.began()
        await traffic.arrives(2, 3)
        unloading = asyncio.create_task(engine.unload("fake"))
        await settle()
        assert await not_found(engine, "") == "no model 'fake'; served: none"
        assert engine.ready
        traffic.gate.open()
        assert await traffic.answered_by() == ["2", "2", "2"]
        await unloading
        assert (one.calls[-1], two.calls[-1]) == ("close", "close")
        assert sum(len(record.queue_s) for record in recorder.runs) == 3


@pytest.mark.parametrize("version", ["", "7"])
@on_manual_clock
async def test_what_is_not_served_cannot_be_unloaded(version: str) -> None:
    async with engine_over(Watched(version="1")) as engine:
        with pytest.raises(ServingError) as refusal:
            await engine.unload("fake" if version else "fame", version)
        assert refusal.value.code is Code.MODEL_NOT_FOUND
        assert versions(engine) == ["1"]


@on_manual_clock
async def test_watchers_hear_of_every_model_that_comes_or_goes() -> None:
    async with engine_over(Watched(version="1")) as engine:
        told: list[list[str]] = []
        engine.watch(lambda: told.append(versions(engine)))
        await engine.load(Watched(version="2"))
        await engine.swap(Watched(version="3"))
        await engine.unload("fake")
        assert told == [["1", "2"], ["3"], []]


@on_manual_clock
async def test_each_model_may_have_options_of_its_own() -> None:
    engine = Engine(SchedulerOptions(), Recorder())
    await engine.load(Watched("one"))
    await engine.load(Watched("two"), SchedulerOptions(max_request_rows=2000))
    engine.open()
    rows = [engine.spec(name).max_request_rows for name in ("one", "two")]
    assert rows == [SchedulerOptions().max_request_rows, 2000]
    await engine.close(grace_s=1.0)


@pytest.mark.parametrize(
    ("names", "asked", "said"),
    [
        ((), ("", ""), "no model is served"),
        (("a", "b"), ("", "2"), "name one of the models: a, b"),
        (("a",), ("", "2"), "no version '2'; served: a 1"),
        (("a",), ("a", "2"), "no model 'a' of version '2'; served: a 1"),
        (("a",), ("b", ""), "no model 'b'; served: a"),
    ],
)
async def test_what_is_not_served_is_refused_by_what_is(
    names: tuple[str, ...], asked: tuple[str, str], said: str
) -> None:
    specs = [replace(Watched(name).spec, version="1") for name in names]
    assert not_served(names, specs, *asked).detail == said
