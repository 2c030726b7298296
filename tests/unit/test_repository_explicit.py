"""A repository whose models are loaded and unloaded as clients say, or at SIGHUP."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from app.repository.listing import PlaceError
from scheduler.errors import Code, LoadError, ServingError
from tests.fixtures.shelf import Shelf, shelved
from transports.repository import Indexed, index

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    made = Shelf(tmp_path)
    made.put("1")
    made.put("1", model="other")
    return made


async def refusal_of(work: Awaitable[None]) -> tuple[Code, str]:
    with pytest.raises(ServingError) as refusal:
        await work
    return refusal.value.code, refusal.value.detail


async def test_nothing_is_served_until_a_client_loads_it(shelf: Shelf) -> None:
    async with shelved(shelf, mode="explicit") as state:
        state.engine.control = state.repository
        assert state.served == []
        assert index(state.engine, only_ready=False) == [
            Indexed("m", "", "UNAVAILABLE", "unloaded"),
            Indexed("other", "", "UNAVAILABLE", "unloaded"),
        ]
        await state.repository.load("m")
        assert state.served == ["m 1"]
        await state.repository.unload("m")
        assert state.served == []
        code, _ = await refusal_of(state.repository.unload("m"))
        assert code is Code.MODEL_NOT_FOUND


async def test_what_is_to_be_loaded_at_the_start_is_named(shelf: Shelf) -> None:
    async with shelved(shelf, mode="explicit", load=("other",)) as state:
        assert state.served == ["other 1"]
    with pytest.raises(PlaceError, match="no model 'nope'"):
        async with shelved(shelf, mode="explicit", load=("nope",)):
            raise AssertionError("it serves")


async def test_a_load_takes_what_lies_there_now(shelf: Shelf) -> None:
    async with shelved(shelf, mode="explicit", load=("m",), settle_s=3600.0) as state:
        shelf.put("2")
        await state.repository.load("m")
        assert state.served == ["m 2"]


@pytest.mark.parametrize("way", ["load", "load_all"])
async def test_what_was_put_there_before_a_load_is_seen_though_others_are_looking(
    shelf: Shelf, way: str
) -> None:
    async with shelved(shelf, mode="explicit", load=("m",)) as state:
        shelf.scanned.clear()
        shelf.gate.clear()
        loading = asyncio.create_task(state.repository.load("other"))
        await asyncio.to_thread(shelf.scanned.wait, 30)
        shelf.put("2")  # after that load has seen what is there
        work = state.repository.load("m") if way == "load" else state.repository.load_all()
        later = asyncio.create_task(work)
        for _ in range(10):
            await asyncio.sleep(0)
        shelf.gate.set()
        await asyncio.gather(loading, later)
        assert state.served == ["m 2", "other 1"]


async def test_a_load_that_fails_says_why_and_what_served_serves_on(shelf: Shelf) -> None:
    async with shelved(shelf, mode="explicit", load=("m",)) as state:
        shelf.put("2", error=LoadError("model.pt is damaged"))
        for _ in range(2):
            assert await refusal_of(state.repository.load("m")) == (
                Code.INTERNAL, "model 'm' was not loaded: version 2: model.pt is damaged",
            )  # fmt: skip
        assert state.served == ["m 1"]
        shelf.put("3")  # it is all that is wanted
        await state.repository.load("m")
        assert state.served == ["m 3"]
        shelf.lost = "no such folder"
        code, detail = await refusal_of(state.repository.load("m"))
        assert (code, detail) == (
            Code.UNAVAILABLE, "the repository cannot be read: no such folder",
        )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../other", "/etc", "m/1", "m\0", "M", "a" * 10_000]
)
async def test_a_name_that_is_no_model_of_the_repository_is_not_found(
    shelf: Shelf, name: str
) -> None:
    async with shelved(shelf, mode="explicit") as state:
        code, detail = await refusal_of(state.repository.load(name))
        assert code is Code.MODEL_NOT_FOUND
        assert "in the repository; there are m, other" in detail
        assert len(detail) < 200
        assert (await refusal_of(state.repository.unload(name)))[0] is Code.MODEL_NOT_FOUND


@pytest.mark.parametrize("mode", ["none", "poll"])
async def test_clients_load_and_unload_in_mode_explicit_only(shelf: Shelf, mode: str) -> None:
    async with shelved(shelf, mode=mode) as state:
        for work in (state.repository.load("m"), state.repository.unload("m")):
            code, detail = await refusal_of(work)
            assert code is Code.UNSUPPORTED
            assert f"repository.mode is {mode}" in detail
        assert state.served == ["m 1", "other 1"]


async def test_loads_of_one_model_take_turns_and_whoever_waits_shares_the_next(
    shelf: Shelf,
) -> None:
    async with shelved(shelf, mode="explicit", load=("m",)) as state:
        shelf.put("2")
        await asyncio.gather(*(state.repository.load("m") for _ in range(5)))
        assert len(shelf.made["m", "2"]) == 1
        await asyncio.gather(
            state.repository.load("other"), state.repository.unload("m"),
            state.repository.load("m"),
        )  # fmt: skip
        assert not state.repository.busy
        assert state.served[-1] == "other 1"


@pytest.mark.parametrize(
    ("mode", "expected"), [("none", ["m 2", "other 1"]), ("explicit", ["m 2"])]
)
async def test_sighup_loads_what_has_changed_of_what_is_served(
    shelf: Shelf, mode: str, expected: list[str]
) -> None:
    load = ("m",) if mode == "explicit" else ()
    async with shelved(shelf, mode=mode, load=load, settle_s=3600.0) as state:
        shelf.put("2")
        assert "m 1" in state.served
        await state.repository.load_all()  # it need not come to rest
        assert state.served == expected
        shelf.lost = "no such folder"
        await state.repository.load_all()
        assert state.served == expected


async def test_sighup_is_one_more_look_where_the_repository_is_polled(shelf: Shelf) -> None:
    async with shelved(shelf) as state:
        shelf.put("2")
        await state.repository.load_all()
        assert state.served == ["m 2", "other 1"]
