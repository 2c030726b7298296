"""A repository that is followed while it serves: what becomes active, is refused, or stays."""

from pathlib import Path

import pytest

from scheduler.errors import LoadError
from tests.fixtures.shelf import Shelf, shelved, until
from transports.repository import Indexed, index

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


async def test_the_newest_version_of_every_model_is_served_by_the_names_of_its_folder(
    shelf: Shelf,
) -> None:
    for version in ("9", "10"):
        shelf.put(version)
    shelf.put("1", model="other")
    async with shelved(shelf) as state:
        assert state.served == ["m 10", "other 1"]
        assert await state.answer() == "10"
        assert shelf.made.keys() == {("m", "10"), ("other", "1")}
        assert state.metric("narsil_repository_reachable 1.0")


async def test_a_new_version_takes_over_and_the_one_before_goes_once_it_is_answered_for(
    shelf: Shelf,
) -> None:
    shelf.put("1")
    async with shelved(shelf) as state:
        shelf.put("2")
        await state.repository.look()
        assert state.served == ["m 2"]
        (old,) = shelf.made["m", "1"]
        assert old.calls[-1] == "close"
        assert state.metric('narsil_model_reloads_total{model="m",outcome="ok"} 2.0')


async def test_files_that_change_are_loaded_anew_in_the_place_of_the_same_version(
    shelf: Shelf,
) -> None:
    shelf.put("1")
    async with shelved(shelf) as state:
        await state.repository.look()
        assert len(shelf.made["m", "1"]) == 1  # nothing has changed
        shelf.put("1", "b")
        await state.repository.look()
        assert len(shelf.made["m", "1"]) == 2
        assert state.served == ["m 1"]
        assert shelf.made["m", "1"][0].calls[-1] == "close"


async def test_a_version_that_fails_its_golden_batch_never_becomes_active_and_says_why(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.put("1")
    shelf.golden("1")
    async with shelved(shelf) as state:
        shelf.put("2")
        shelf.golden("2", off=0.5)
        for _ in range(3):
            await state.repository.look()
        assert await state.answer() == "1"
        reason = (
            "golden batch: the scores of 'default' differ by 0.5 from golden.npz, above the"
            " tolerance of 1e-05"
        )
        assert state.refused == {"2": reason}
        assert index(state.engine, only_ready=False) == [
            Indexed("m", "1", "READY", ""), Indexed("m", "2", "UNAVAILABLE", reason),
        ]  # fmt: skip
        assert state.metric('narsil_repository_refused{model="m",version="2"} 1.0')
        assert state.metric('narsil_model_reloads_total{model="m",outcome="failed"} 1.0')
        assert caplog.text.count(reason) == 1  # and it was loaded once
        (refused,) = shelf.made["m", "2"]
        assert refused.calls[-1] == "close"
        shelf.put("2", "mended")
        shelf.golden("2")
        await state.repository.look()
        assert (state.served, state.refused) == (["m 2"], {})


async def test_of_several_the_newest_that_is_good_is_served_also_after_a_restart(
    shelf: Shelf,
) -> None:
    shelf.put("1")
    shelf.put("2")
    shelf.put("3", error=LoadError("model.pt is damaged"))
    async with shelved(shelf) as state:
        assert state.served == ["m 2"]
        assert state.refused == {"3": "model.pt is damaged"}


@pytest.mark.parametrize("error", [LoadError("no"), SystemExit(3), ZeroDivisionError("no")])
async def test_new_files_of_a_version_that_cannot_be_loaded_leave_what_it_serves(
    shelf: Shelf, error: BaseException
) -> None:
    shelf.put("1")
    shelf.put("2")
    async with shelved(shelf) as state:
        shelf.put("2", "broken", error=error)
        await state.repository.look()
        assert state.served == ["m 2"]
        assert await state.answer() == "2"
        assert list(state.refused) == ["2"]
        (row,) = index(state.engine, only_ready=True)
        assert row.state == "READY"
        assert row.reason == state.refused["2"]


async def test_files_that_change_while_they_are_loaded_are_loaded_again(shelf: Shelf) -> None:
    shelf.put("1")
    async with shelved(shelf) as state:
        shelf.put("2", "half")
        unchanged = shelf.unchanged

        def meddling(model: str, version: str, signature: str) -> bool:
            if signature == "half":
                shelf.put("2", "whole")
            return unchanged(model, version, signature)

        shelf.unchanged = meddling  # type: ignore[method-assign]  # the moment between is short
        await state.repository.look()
        assert state.served == ["m 1"]
        assert state.refused == {"2": "its files were changed while it was loaded"}
        await state.repository.look()
        assert (state.served, state.refused) == (["m 2"], {})


async def test_what_is_being_copied_is_not_loaded_until_it_has_come_to_rest(shelf: Shelf) -> None:
    shelf.put("1")
    async with shelved(shelf, settle_s=3600.0) as state:
        shelf.put("2")
        await state.repository.look()
        await state.repository.look()
        assert state.served == ["m 1"]


async def test_a_config_that_is_wrong_changes_nothing_until_it_is_mended(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.configure("[labels]\nstable = 1\n")
    shelf.put("1")
    async with shelved(shelf) as state:
        shelf.configure("[labels\n")
        shelf.put("2")
        for _ in range(3):
            await state.repository.look()
        assert state.served == ["m 1", "m 2"]  # by the one before
        assert "m/config.toml: Expected ']'" in state.refused[""]
        assert state.metric('narsil_repository_refused{model="m",version=""} 1.0')
        assert caplog.text.count("m/config.toml") == 1
        assert {row.reason for row in index(state.engine, only_ready=True)} == {state.refused[""]}
        shelf.configure("[labels]\nstable = 2\n")
        await state.repository.look()
        assert (state.served, state.refused) == (["m 2"], {})


async def test_a_model_whose_first_config_is_wrong_is_not_served_and_keeps_no_other_from_it(
    shelf: Shelf,
) -> None:
    shelf.configure("lines = 2")
    shelf.put("1")
    shelf.put("1", model="other")
    async with shelved(shelf) as state:
        assert state.served == ["other 1"]
        assert "no key 'lines'; did you mean 'lanes'?" in state.refused[""]
        gone = [row for row in index(state.engine, only_ready=False) if row.name == "m"]
        assert gone == [Indexed("m", "", "UNAVAILABLE", state.refused[""])]


async def test_settings_that_change_load_the_versions_anew(shelf: Shelf) -> None:
    shelf.put("1")
    async with shelved(shelf) as state:
        shelf.configure("lanes = 2")
        await state.repository.look()
        assert len(shelf.made["m", "1"]) == 2
        shelf.configure("lanes = 2\n[labels]\nstable = 1")
        await state.repository.look()
        assert len(shelf.made["m", "1"]) == 2  # labels move without
        assert await state.answer("stable") == "1"


async def test_a_label_stays_on_its_version_until_the_next_one_serves(shelf: Shelf) -> None:
    shelf.configure('[labels]\nstable = 1\ncanary = "latest"\n')
    shelf.put("1")
    shelf.put("2")
    async with shelved(shelf) as state:
        assert [await state.answer(name) for name in ("stable", "canary")] == ["1", "2"]
        assert state.metric('narsil_model_label{label="canary",model="m",version="2"} 1.0')
        shelf.put("3", error=LoadError("no"))
        shelf.configure('[labels]\nstable = 3\ncanary = "latest"\n')
        await state.repository.look()
        assert [await state.answer(name) for name in ("stable", "canary")] == ["1", "2"]
        shelf.put("3", "mended")
        await state.repository.look()
        assert [await state.answer(name) for name in ("stable", "canary")] == ["3", "3"]
        assert state.served == ["m 3"]


async def test_a_split_and_a_shadow_are_those_of_the_config(shelf: Shelf) -> None:
    shelf.configure(
        "[labels]\nstable = 1\ncanary = 2\n[split]\nstable = 1\ncanary = 1\n"
        "[shadow]\nversion = 3\nshare = 1.0\n"
    )
    for version in ("1", "2", "3"):
        shelf.put(version)
    async with shelved(shelf) as state:
        (started,) = state.started
        assert {started.spec.version, *started.others} == {"1", "2", "3"}
        assert {await state.answer(key=f"{number}") for number in range(40)} == {"1", "2"}
        copies = 'narsil_shadow_requests_total{model="m",outcome="compared",version="3"}'
        await until(lambda: copies in state.observer.exposition("")[0].decode())
        assert state.engine.spec("m", "3").properties["shadow"] == "true"


async def test_a_shadow_that_gets_no_copies_is_told_once(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.configure('[shadow]\nversion = "latest"\n')
    shelf.put("1")
    async with shelved(shelf) as state:
        await state.repository.look()
        (told,) = [one for one in caplog.messages if "shadow" in one]
        assert told == "m: version 1 is no shadow: it answers clients itself"
        shelf.put("2")
        await state.repository.look()
        assert state.engine.spec("m", "2").properties["shadow"] == "true"
        shelf.configure('[shadow]\nversion = "latest"\n[split]\n1 = 1\n2 = 1\n')
        await state.repository.look()
    _, again = [one for one in caplog.messages if "shadow" in one]
    assert again == "m: version 2 is no shadow: it answers clients itself"


async def test_a_version_that_is_named_and_not_there_says_so(shelf: Shelf) -> None:
    shelf.configure("[labels]\nstable = 7\n")
    shelf.put("1")
    async with shelved(shelf) as state:
        assert state.served == ["m 1"]
        assert state.refused == {"7": "its configuration names it, and it is not there"}
        shelf.put("7")
        await state.repository.look()
        assert (await state.answer("stable"), state.refused) == ("7", {})


async def test_the_files_of_a_version_that_serves_may_go_and_the_last_one_serves_on(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.configure('[versions]\npolicy = "all"')
    shelf.put("1")
    shelf.put("2")
    async with shelved(shelf) as state:
        shelf.take("2")
        await state.repository.look()
        assert state.served == ["m 1"]
        shelf.take("1")
        for _ in range(3):
            await state.repository.look()
        assert state.served == ["m 1"]
        assert await state.answer() == "1"
        assert state.refused == {"1": "its files are gone; it serves on"}
        shelf.put("1")
        await state.repository.look()
        assert state.refused == {}
        assert len(shelf.made["m", "1"]) == 1
        shelf.take("1")
        shelf.put("3")
        await state.repository.look()
        assert (state.served, state.refused) == (["m 3"], {})


async def test_a_model_that_goes_from_the_repository_is_unloaded(shelf: Shelf) -> None:
    shelf.put("1")
    shelf.put("1", model="other")
    async with shelved(shelf) as state:
        shelf.clear()
        await state.repository.look()
        assert state.served == ["other 1"]
        shelf.put("2")
        await state.repository.look()
        assert state.served == ["m 2", "other 1"]


async def test_a_model_whose_folder_cannot_be_read_serves_on_and_says_why(shelf: Shelf) -> None:
    shelf.put("1")
    async with shelved(shelf) as state:
        shelf.configure("", problem="m leads out of the repository")
        await state.repository.look()
        assert state.served == ["m 1"]
        assert state.refused == {"": "m leads out of the repository"}
        shelf.configure("")
        await state.repository.look()
        assert state.refused == {}
