"""Models that SIGHUP loads anew while they serve."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.reloader import Reloader
from scheduler.engine import Engine
from scheduler.errors import LoadError
from tests.fixtures.gates import Watched, make_request
from tests.fixtures.manual_clock import settle
from tests.fixtures.stock import Stock, Version, stocked


@asynccontextmanager
async def reloading(
    first: Version, stock: Stock, *others: Watched
) -> AsyncIterator[tuple[Engine, Reloader]]:
    """Serve ``first``, to be replaced from ``stock``, beside ``others``."""
    async with stocked({first: stock}, *others) as served:
        reloader = Reloader(served.repository)
        running = asyncio.create_task(reloader.run())
        try:
            yield served.engine, reloader
        finally:
            running.cancel()


async def test_a_reload_replaces_the_model_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "app")
    first, second = Version("1"), Version("2")
    async with reloading(first, Stock([second])) as (engine, reloader):
        reloader.ask()
        await first.until("close")
        await settle()
        assert [spec.version for spec in engine.specs()] == ["2"]
        answer = await engine.infer(make_request(2))
    assert answer.version == "2"
    assert "asked for all models anew (SIGHUP)" in caplog.text
    assert "fake: reloaded, version 1 -> 2 in " in caplog.text
    assert "mode batch, lanes 1, max_batch_rows 1024, max_batch_ids 262144" in caplog.text


async def test_a_model_that_fails_to_load_is_reported_and_the_old_one_serves_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, second = Version("2", error=LoadError("model.pt is damaged")), Version("3")
    first = Version("1")
    async with reloading(first, Stock([broken, second])) as (engine, reloader):
        reloader.ask()
        await broken.until("load")
        while "not reloaded" not in caplog.text:  # noqa: ASYNC110  # a thread has to end
            await asyncio.sleep(0)
        assert (await engine.infer(make_request(2))).version == "1"
        reloader.ask()
        await first.until("close")
        assert (await engine.infer(make_request(2))).version == "3"
    assert [one.levelname for one in caplog.records if one.levelno > logging.INFO] == ["ERROR"]
    assert "fake: not reloaded, version 1 serves on: model.pt is damaged" in caplog.text


async def test_asked_again_while_under_way_it_reloads_once_more_after() -> None:
    first, second, third = Version("1"), Version("2"), Version("3")
    stock = Stock([second, third])
    second.held.clear()
    async with reloading(first, stock) as (engine, reloader):
        reloader.ask()
        await second.until("load")
        for _ in range(3):
            reloader.ask()
        await settle()
        assert len(stock.asked) == 1
        second.held.set()
        await second.until("close")
        await settle()
        assert [spec.version for spec in engine.specs()] == ["3"]
        assert len(stock.asked) == 2


async def test_a_model_keeps_the_name_that_it_is_served_under() -> None:
    first, stock = Version("1", name="served"), Stock([Version("2", name="served")])
    async with reloading(first, stock) as (_, reloader):
        reloader.ask()
        await first.until("close")
    assert [options.name for options in stock.asked] == ["served"]


async def test_a_model_of_several_versions_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stock = Stock([])
    async with reloading(Version("1"), stock, Version("2")) as (engine, reloader):
        reloader.ask()
        await settle()
        assert [spec.version for spec in engine.specs()] == ["1", "2"]
    assert stock.asked == []
    assert "left alone, it is served in versions" in caplog.text
