"""Configured models that are loaded and unloaded on somebody's word, while they serve."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from app.configured import ConfiguredModels
from scheduler.engine import Engine
from scheduler.errors import Code, LoadError, ServingError
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from tests.fixtures.gates import make_request
from tests.fixtures.manual_clock import settle
from tests.fixtures.stock import Stock, Stocked, Version, stocked

pytestmark = pytest.mark.timeout(60)


def served(stock: Stocked) -> list[tuple[str, str]]:
    return [(spec.name, spec.version) for spec in stock.engine.specs()]


async def refusal_of(work: Awaitable[None]) -> ServingError:
    with pytest.raises(ServingError) as refusal:
        await work
    return refusal.value


async def test_a_load_swaps_the_models_files_in_and_is_counted() -> None:
    async with stocked({Version("1"): Stock([Version("2")])}) as state:
        await state.repository.load("fake")
        assert served(state) == [("fake", "2")]
        assert state.recorder.reloads == ["ok"]
        assert not state.repository.busy


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda: Version("2", error=LoadError("model.pt is damaged")), "model.pt is damaged"),
        (lambda: Version("2", error=SystemExit(3)), "SystemExit(3)"),
        (lambda: ZeroDivisionError("no maker"), "ZeroDivisionError('no maker')"),
    ],
)
async def test_a_load_that_fails_gives_the_reason_and_the_old_one_serves_on(
    broken: Callable[[], Version | Exception], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with stocked({Version("1"): Stock([broken()])}) as state:
        refusal = await refusal_of(state.repository.load("fake"))
        assert (refusal.code, state.recorder.reloads) == (Code.INTERNAL, ["failed"])
        assert refusal.detail.startswith("model 'fake' was not loaded: ")
        assert reason in refusal.detail
        assert (await state.engine.infer(make_request(2))).version == "1"
    assert "fake: not reloaded, version 1 serves on" in caplog.text


async def test_one_model_that_cannot_be_built_keeps_no_other_from_being_loaded() -> None:
    models = {
        Version("1", "a"): Stock([ZeroDivisionError("no maker")]),
        Version("1", "b"): Stock([Version("2", "b")]),
    }
    async with stocked(models) as state:
        await state.repository.load_all()
        assert served(state) == [("a", "1"), ("b", "2")]
        assert state.recorder.reloads == ["failed", "ok"]


async def test_loads_of_one_model_take_turns_and_whoever_waits_shares_the_next() -> None:
    second, third = Version("2"), Version("3")
    stock = Stock([second, third])
    second.held.clear()
    async with stocked({Version("1"): stock}) as state:
        first = asyncio.create_task(state.repository.load("fake"))
        await second.until("load")
        others = [asyncio.create_task(state.repository.load("fake")) for _ in range(3)]
        await settle()
        assert len(stock.asked) == 1
        second.held.set()
        await asyncio.gather(first, *others)
        assert len(stock.asked) == 2
        assert served(state) == [("fake", "3")]


async def test_models_load_beside_each_other() -> None:
    slow = Version("2", "a")
    slow.held.clear()
    models = {Version("1", "a"): Stock([slow]), Version("1", "b"): Stock([Version("2", "b")])}
    async with stocked(models) as state:
        loading = asyncio.create_task(state.repository.load("a"))
        await slow.until("load")
        await state.repository.load("b")
        assert served(state) == [("a", "1"), ("b", "2")]
        slow.held.set()
        await loading


async def test_a_load_goes_on_when_whoever_asked_for_it_leaves() -> None:
    first, second = Version("1"), Version("2")
    second.held.clear()
    async with stocked({first: Stock([second])}) as state:
        asking = asyncio.create_task(state.repository.load("fake"))
        await second.until("load")
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        assert state.repository.busy
        second.held.set()
        await first.until("close")
        assert served(state) == [("fake", "2")]


async def test_a_model_that_was_unloaded_is_loaded_again_only_by_name() -> None:
    async with stocked({Version("1"): Stock([Version("2")])}) as state:
        await state.repository.unload("fake")
        assert served(state) == []
        assert (await refusal_of(state.repository.unload("fake"))).code is Code.MODEL_NOT_FOUND
        await state.repository.load_all()
        assert served(state) == []
        await state.repository.load("fake")
        assert served(state) == [("fake", "2")]


async def test_a_name_that_was_not_configured_is_not_found() -> None:
    async with stocked({Version("1"): Stock([])}, Version("1", "guest")) as state:
        for work in (state.repository.load("guest"), state.repository.unload("guest")):
            refusal = await refusal_of(work)
            assert refusal.code is Code.MODEL_NOT_FOUND
            assert refusal.detail == "no model 'guest' is configured; there are fake"


async def test_a_model_of_several_versions_is_neither_loaded_nor_unloaded_by_name() -> None:
    async with stocked({Version("1"): Stock([])}, Version("2")) as state:
        for work in (state.repository.load("fake"), state.repository.unload("fake")):
            refusal = await refusal_of(work)
            assert refusal.code is Code.UNSUPPORTED
            assert "several versions (1, 2)" in refusal.detail
        assert served(state) == [("fake", "1"), ("fake", "2")]


async def test_nothing_is_loaded_on_demand_before_the_start_is_over() -> None:
    repository = ConfiguredModels(Engine(SchedulerOptions(), Observer()), grace_s=1.0)
    assert (await refusal_of(repository.load("fake"))).code is Code.UNAVAILABLE
