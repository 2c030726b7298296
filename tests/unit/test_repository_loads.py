"""What of a repository is loaded side by side."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from app.repository.loads import Loads
from tests.fixtures.gates import Watched
from tests.fixtures.shelf import Shelf, ShelfOptions, shelved, until

EVERY = '[versions]\npolicy = "all"'


class Held(Shelf):
    """A shelf whose versions load once ``gates`` lets them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gates: dict[str, Event] = {}

    def _build(self, options: ShelfOptions) -> Watched:
        backend = super()._build(options)
        backend.held = self.gates.setdefault(Path(options.path).name, Event())
        return backend

    def loading(self) -> list[str]:
        """Every version whose load has begun."""
        return sorted(version for (_, version), (one, *_) in self.made.items() if one.calls)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Held]:
    shelf = Held(tmp_path)
    shelf.configure(EVERY)
    for version in "123":
        shelf.put(version)
        shelf.gates[version] = Event()
    yield shelf
    for gate in shelf.gates.values():
        gate.set()


async def start(shelf: Held, **options: int) -> None:
    async with shelved(shelf, **options) as state:
        assert state.served == ["m 1", "m 2", "m 3"]


async def test_versions_of_one_model_load_side_by_side_the_newest_first(shelf: Held) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(start(shelf, loads_at_once=2))
        await until(lambda: shelf.loading() == ["2", "3"])
        assert ("m", "1") not in shelf.made
        shelf.gates["2"].set()  # its slot is the next one's
        await until(lambda: shelf.loading() == ["1", "2", "3"])
        shelf.gates["1"].set()
        shelf.gates["3"].set()


async def test_no_more_load_at_once_than_is_said(shelf: Held) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(start(shelf, loads_at_once=1))
        for version in "321":
            await until(lambda version=version: version in shelf.loading())  # type: ignore[misc]
            assert len(shelf.made) == 4 - int(version)
            shelf.gates[version].set()


async def test_a_version_that_hangs_keeps_no_other_from_loading(shelf: Held) -> None:
    shelf.gates["1"].set()
    shelf.gates["2"].set()
    async with shelved(shelf, loads_at_once=2, load_timeout_s=0.05) as state:
        await until(lambda: state.served == ["m 1", "m 2"])
        assert [one.model for one in state.engine.refused] == ["m"]
        shelf.gates["3"].set()
        await until(lambda: state.served == ["m 1", "m 2", "m 3"])


async def test_what_is_late_gives_back_every_slot_it_took() -> None:
    loads = Loads(2, 0.0, lambda: None)
    work = asyncio.get_running_loop().create_future()
    assert await loads.take_more("m")
    assert await loads.take_more("m")
    assert not await loads.take_more("other")
    assert not await loads.in_time("m", work)  # type: ignore[arg-type]
    assert not await loads.take_more("m")
    assert await loads.take_more("other")
    loads.give_back("m")  # it has none any more
    assert await loads.take_more("other")
    assert not await loads.take_more("other")
    work.set_result(None)
