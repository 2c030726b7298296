"""Files that are put into the watched folder reach the model, in order and once."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.deltas import DeltaFolder
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from tests.fixtures.delta_files import delta_bytes
from tests.fixtures.updatable import TABLES, UpdatableFake, delta
from transports import updates


@asynccontextmanager
async def watching(
    backend: UpdatableFake, folder: Path, artifact_keys: str = ""
) -> AsyncIterator[tuple[Engine, DeltaFolder]]:
    engine = Engine(SchedulerOptions(), Observer())
    await engine.load(backend)
    engine.open()
    try:
        yield engine, DeltaFolder(engine, folder, artifact_keys)
    finally:
        await engine.close(0.0)


def put(folder: Path, name: str, value: float = 1.0, **metadata: str) -> None:
    form = {"json": "json", "parquet": "parquet"}.get(name.rpartition(".")[2], "file")
    beside = folder / f".{name}"
    beside.write_bytes(delta_bytes(form, delta(value=value).tables, **metadata))
    beside.rename(folder / name)


def outcomes(folder: Path) -> dict[str, str]:
    files = json.loads((folder / "status.json").read_text())["files"]
    return {one["file"]: one["outcome"] for one in files}


def details(folder: Path) -> dict[str, str]:
    files = json.loads((folder / "status.json").read_text())["files"]
    return {one["file"]: one["detail"] for one in files}


def addressees(folder: Path) -> dict[str, tuple[str, str]]:
    files = json.loads((folder / "status.json").read_text())["files"]
    return {one["file"]: (one["model"], one["version"]) for one in files}


def value(backend: UpdatableFake) -> float:
    return float(backend.stored[TABLES[0]].max())


async def test_files_are_applied_in_the_order_of_their_names_once(tmp_path: Path) -> None:
    backend = UpdatableFake()
    async with watching(backend, tmp_path) as (engine, folder):
        put(tmp_path, "002.arrow", 2.0, base="1")
        put(tmp_path, "001.parquet", 1.0, base="0")
        put(tmp_path, "003.json", 3.0, base="2")
        (tmp_path / "readme.txt").write_text("not a delta")
        await folder.look()
        await folder.look()
        assert value(backend) == 3.0
        assert engine.updates("").sequence == 3
        assert outcomes(tmp_path) == {
            "001.parquet": "applied", "002.arrow": "applied", "003.json": "applied",
        }  # fmt: skip


async def test_a_torn_file_holds_up_the_next_until_it_changes(tmp_path: Path) -> None:
    backend = UpdatableFake()
    async with watching(backend, tmp_path) as (engine, folder):
        put(tmp_path, "1.arrow", 1.0)
        put(tmp_path, "2.arrow", 2.0)
        whole = (tmp_path / "1.arrow").read_bytes()
        (tmp_path / "1.arrow").write_bytes(whole[:-100])
        for _ in range(2):
            await folder.look()
        assert engine.updates("").sequence == 0
        assert outcomes(tmp_path) == {"1.arrow": "refused"}
        assert "the delta cannot be read" in details(tmp_path)["1.arrow"]
        put(tmp_path, "1.arrow", 1.0)
        await folder.look()
        assert (engine.updates("").sequence, value(backend)) == (2, 2.0)


async def test_a_refused_file_is_passed_by_taking_it_away(tmp_path: Path) -> None:
    backend = UpdatableFake()
    async with watching(backend, tmp_path) as (engine, folder):
        put(tmp_path, "1.json", 1.0, base="5")
        put(tmp_path, "2.json", 2.0)
        await folder.look()
        assert engine.updates("").sequence == 0
        assert details(tmp_path)["1.json"].startswith("base is 5")
        (tmp_path / "1.json").unlink()
        await folder.look()
        assert value(backend) == 2.0
        assert outcomes(tmp_path) == {"2.json": "applied"}


async def test_what_is_for_another_version_is_passed_over(tmp_path: Path) -> None:
    backend = UpdatableFake()
    async with watching(backend, tmp_path) as (_, folder):
        put(tmp_path, "1.json", 1.0, model="fake", version="0")
        put(tmp_path, "2.json", 2.0, model="fake", version="1")
        await folder.look()
        assert value(backend) == 2.0
        assert outcomes(tmp_path) == {"1.json": "passed_over", "2.json": "applied"}


async def test_the_status_says_which_model_and_version_got_a_file_that_names_none(
    tmp_path: Path,
) -> None:
    async with watching(UpdatableFake(), tmp_path) as (_, folder):
        put(tmp_path, "0.json", 1.0, version="9")
        put(tmp_path, "1.json", 1.0)
        await folder.look()
        assert addressees(tmp_path) == {"0.json": ("", "9"), "1.json": ("fake", "1")}
        assert details(tmp_path)["0.json"] == "no version '9'; served: fake 1"


async def test_a_model_that_is_loaded_anew_gets_them_all_again(tmp_path: Path) -> None:
    fresh = UpdatableFake()
    async with watching(UpdatableFake(), tmp_path) as (engine, folder):
        put(tmp_path, "1.json", 1.0, base="0")
        put(tmp_path, "2.json", 2.0, base="1")
        await folder.look()
        await engine.swap(fresh)
        await folder.look()
        assert (engine.updates("").sequence, value(fresh)) == (2, 2.0)


async def test_a_rollback_is_not_undone_by_the_folder(tmp_path: Path) -> None:
    backend = UpdatableFake()
    async with watching(backend, tmp_path) as (engine, folder):
        put(tmp_path, "1.json", 1.0)
        await folder.look()
        await updates.roll_back(engine, "", "")
        await folder.look()
        assert (engine.updates("").sequence, value(backend)) == (0, 0.0)


async def test_a_folder_that_vanishes_and_comes_back_is_watched_on(tmp_path: Path) -> None:
    backend = UpdatableFake()
    place = tmp_path / "deltas"
    async with watching(backend, place) as (_, folder):
        await folder.look()
        place.mkdir()
        put(place, "1.json", 1.0)
        await folder.look()
        assert value(backend) == 1.0
