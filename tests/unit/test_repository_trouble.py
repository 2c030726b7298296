"""A repository that is followed while things go wrong, or all at once, or never stop."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from app.repository.listing import Listing, PlaceError
from scheduler.errors import Code, ServingError
from tests.fixtures.gates import Watched
from tests.fixtures.manual_clock import settle
from tests.fixtures.shelf import Shelf, ShelfOptions, Shelved, shelved, until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


async def vanish(shelf: Shelf, how: str) -> None:
    if how == "unreadable":
        shelf.lost = "no such folder"
    else:
        shelf.clear()


@pytest.mark.parametrize("how", ["unreadable", "empty"])
async def test_a_repository_that_vanishes_leaves_everything_serving_and_is_reported_once(
    shelf: Shelf, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "app")
    shelf.put("1")
    async with shelved(shelf) as state:
        await vanish(shelf, how)
        for _ in range(3):
            await state.repository.look()
        assert await state.answer() == "1"
        assert state.metric("narsil_repository_reachable 0.0")
        assert caplog.text.count("cannot be read") == 1
        shelf.lost = ""
        shelf.put("1")
        shelf.put("2")
        await state.repository.look()
        assert state.served == ["m 2"]
        assert state.metric("narsil_repository_reachable 1.0")
        assert "can be read again" in caplog.text


async def test_a_listing_that_never_ends_counts_as_vanished_and_is_not_begun_twice(
    shelf: Shelf,
) -> None:
    shelf.put("1")
    async with shelved(shelf, scan_timeout_s=0.01) as state:
        scan, held, scans = shelf.scan, Event(), shelf.scans

        def slow() -> Listing:
            held.wait()
            return scan()

        shelf.scan = slow  # type: ignore[method-assign]  # a file system that hangs
        for _ in range(3):
            await state.repository.look()
        assert state.metric("narsil_repository_reachable 0.0")
        assert await state.answer() == "1"
        held.set()
        shelf.put("2")
        while state.served != ["m 2"]:
            await state.repository.look()
        assert shelf.scans > scans


async def test_the_repository_is_looked_at_by_itself_and_a_fault_ends_one_look_only(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.put("1")
    async with shelved(shelf, poll_s=0.001) as state:
        scan, faults = shelf.scan, [ZeroDivisionError("a fault of ours")]

        def faulty() -> Listing:
            if faults:
                raise faults.pop()
            return scan()

        shelf.scan = faulty  # type: ignore[method-assign]
        running = asyncio.create_task(state.repository.run())
        shelf.put("2")
        await until(lambda: state.served == ["m 2"])
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert "a fault of ours" in caplog.text


async def test_two_looks_at_once_take_turns_and_load_once(shelf: Shelf) -> None:
    shelf.put("1")
    async with shelved(shelf) as state:
        shelf.put("2")
        await asyncio.gather(*(state.repository.look() for _ in range(4)))
        assert len(shelf.made["m", "2"]) == 1
        assert state.served == ["m 2"]


async def test_requests_that_never_stop_see_versions_come_and_go_and_no_error(
    shelf: Shelf,
) -> None:
    shelf.put("1")
    async with shelved(shelf) as state:
        seen: list[str] = []
        asking = asyncio.create_task(ask_on(state, seen))
        for version in ("2", "3", "4"):
            shelf.put(version)
            await state.repository.look()
        shelf.put("4", "renewed")
        await state.repository.look()
        while seen[-1:] != ["4"]:
            await settle()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        assert seen == sorted(seen)


async def ask_on(state: Shelved, seen: list[str]) -> None:
    while True:
        seen.append(await state.answer())


async def test_a_repository_that_cannot_be_read_at_the_start_is_waited_for_only_if_polled(
    shelf: Shelf,
) -> None:
    shelf.lost = "no such folder"
    for mode in ("none", "explicit"):
        with pytest.raises(PlaceError, match="no such folder"):
            async with shelved(shelf, mode=mode):
                raise AssertionError("it serves")
    async with shelved(shelf) as state:
        assert state.served == []
        shelf.lost = ""
        shelf.put("1")
        await state.repository.look()
        assert state.served == ["m 1"]


async def test_what_nobody_foresaw_in_one_model_keeps_no_other_from_being_followed(
    shelf: Shelf,
) -> None:
    for model in ("a", "m"):
        shelf.put("1", model=model)
    async with shelved(shelf) as state:
        shelf.unforeseen = "a"
        shelf.configure("lanes = 2", model="a")
        shelf.put("2")
        await state.repository.look()
        assert state.served == ["a 1", "m 2"]


async def test_names_that_clients_ask_for_are_forgotten(shelf: Shelf) -> None:
    shelf.put("1")
    async with shelved(shelf, mode="explicit", load=("m",)) as state:
        for number in range(3):
            with pytest.raises(ServingError):
                await state.repository.load(f"nobody-{number}")
        await asyncio.sleep(0)
        assert not state.repository._turns._last
        assert not state.repository._turns._next


@pytest.fixture
def hung(shelf: Shelf) -> Iterator[Event]:
    """Let the loads of the model "a" hang until the event is set."""
    held, build = Event(), shelf._build

    def hanging(options: ShelfOptions) -> Watched:
        backend = build(options)
        if "a" in Path(options.path).parts:
            backend.held = held
        return backend

    shelf._build = hanging  # type: ignore[method-assign]
    yield held
    held.set()


async def test_a_load_that_hangs_holds_up_no_other_model_and_is_reported(
    shelf: Shelf, hung: Event
) -> None:
    shelf.put("1")
    async with shelved(shelf, load_timeout_s=0.05, loads_at_once=1) as state:
        shelf.put("1", model="a")
        shelf.put("2")
        await state.repository.look()  # "a" is the first of them
        await until(lambda: state.served == ["m 2"])
        late = {one.model: one.reason for one in state.engine.refused}
        assert late["a"] == "still loading after 0.05 s (repository.load_timeout_s)"
        shelf.put("3")
        await until(lambda: "m" not in {one.model for one in state.engine.refused})
        await state.repository.look()  # and it is not begun again
        await until(lambda: state.served == ["m 3"])
        assert len(shelf.made["a", "1"]) == 1
        hung.set()
        await until(lambda: state.served == ["a 1", "m 3"])
        await until(lambda: state.engine.refused == ())
        shelf.put("2", model="a")
        await state.repository.look()
        await until(lambda: state.served == ["a 2", "m 3"])


@pytest.mark.usefixtures("hung")
async def test_a_server_starts_with_what_loads(shelf: Shelf) -> None:
    shelf.put("1")
    shelf.put("1", model="a")
    async with shelved(shelf, load_timeout_s=0.05, loads_at_once=1) as state:
        await until(lambda: state.served == ["m 1"])
        assert await state.answer(model="m") == "1"
        assert "a" in [one.model for one in state.engine.refused]


@pytest.mark.usefixtures("hung")
async def test_a_client_whose_load_hangs_is_told(shelf: Shelf) -> None:
    shelf.put("1", model="a")
    async with shelved(shelf, mode="explicit", load_timeout_s=0.05) as state:
        with pytest.raises(ServingError, match="model 'a' is still loading after 0") as told:
            await state.repository.load("a")
        assert told.value.code is Code.UNAVAILABLE
