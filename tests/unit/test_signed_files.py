"""Signatures beyond an artifact's folder: a repository's configuration, deltas of rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from app import cli
from app.repository.keeper import Keeper
from app.repository.loads import Loads
from app.repository.local import LocalPlace
from app.repository.remote import RemotePlace
from app.resolve import resolve
from app.settings import ConfigError
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from tests.fixtures.updatable import UpdatableFake
from tests.unit.test_delta_folder import details, outcomes, put, value, watching
from tests.unit.test_signatures import key_files

Change: TypeAlias = Callable[[Path], Any]


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return key_files(tmp_path, "trainer")


def signed(path: Path, keys: tuple[Path, Path]) -> None:
    assert cli.main(["sign", str(path), "--key", str(keys[0])]) == 0


@pytest.fixture
def repository(tmp_path: Path, keys: tuple[Path, Path]) -> Path:
    """One model of two versions, signed."""
    root = tmp_path / "models"
    for version in ("1", "2"):
        (root / "ranking" / version).mkdir(parents=True)
        (root / "ranking" / version / "weights").write_text(version)
    (root / "ranking" / "config.toml").write_text('backend = "fake"\n[versions]\nlatest = 2\n')
    signed(root, keys)
    return root


def refusals_of(root: Path, public: Path) -> Callable[[], Any]:
    """Return what follows the repository and says why its configuration is refused."""
    config, _ = resolve(["--repository", str(root), "--artifact-keys", str(public)])
    place = LocalPlace(root)
    engine = Engine(SchedulerOptions(), Observer())
    keeper = Keeper("ranking", engine, place, config.planner, Loads(1, 60.0, lambda: None), 0.0)

    async def refusals() -> dict[str, str]:
        await keeper.sync(place.scan()["ranking"])
        return {one.version: one.reason for one in keeper.refused}

    return refusals


def test_a_repository_is_signed_version_by_version_and_its_configurations_too(
    repository: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    made = {str(path.relative_to(repository)) for path in repository.rglob("*.sig")}
    assert made == {"ranking/config.toml.sig"} | {
        f"ranking/{version}/SHA256SUMS.sig" for version in "12"
    }
    capsys.readouterr()
    signed(repository / "ranking", keys)  # one model of it
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.with_name("config.toml.sig").unlink(), "there is no ranking/config.toml.sig"),
        (lambda f: f.write_text(f.read_text() + "# more"), "is of none of the 1 artifact_keys"),
        (lambda f: f.with_name("config.toml.sig").write_bytes(bytes(64)), "is of none of the 1"),
        # Before anything of it is parsed.
        (lambda f: f.write_text("no = [toml"), "is of none of the 1 artifact_keys"),
    ],
)
async def test_a_configuration_that_is_not_as_it_was_signed_is_refused_and_the_old_one_holds(
    repository: Path, keys: tuple[Path, Path], change: Change, words: str
) -> None:
    refusals = refusals_of(repository, keys[1])
    assert "" not in await refusals()
    file = repository / "ranking" / "config.toml"
    before = file.read_text()
    change(file)
    other = refusals_of(repository, keys[1])  # a server that starts now
    assert words in (await other())[""]
    if file.read_text() != before:
        assert words in (await refusals())[""]  # one that serves already
    file.write_text(before)
    signed(repository, keys)
    assert "" not in await refusals()
    assert "" not in await other()


def test_a_repository_elsewhere_is_read_with_its_signatures(
    repository: Path, tmp_path: Path
) -> None:
    here = LocalPlace(repository).scan()["ranking"]
    there = RemotePlace(f"file://{repository}", tmp_path / "cache").scan()["ranking"]
    assert there.config_signature == here.config_signature != b""
    (repository / "ranking" / "config.toml.sig").write_bytes(bytes(65))
    for place in (LocalPlace(repository), RemotePlace(f"file://{repository}", tmp_path / "cache")):
        assert "more than 64 bytes" in place.scan()["ranking"].problem


async def test_deltas_are_applied_only_as_they_were_signed(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    backend, place = UpdatableFake(), tmp_path / "deltas"
    place.mkdir()
    async with watching(backend, place, str(keys[1])) as (_, folder):
        put(place, "001.arrow", 1.0)
        await folder.look()
        assert "there is no 001.arrow.sig" in details(place)["001.arrow"]
        signed(place / "001.arrow", keys)
        await folder.look()  # the signature alone is new
        assert (outcomes(place)["001.arrow"], value(backend)) == ("applied", 1.0)
        put(place, "002.json", 2.0)
        signed(place / "002.json", keys)
        put(place, "002.json", 3.0)
        await folder.look()
        assert "002.json.sig is of none of the 1 artifact_keys" in details(place)["002.json"]
        (place / "002.json").write_text("{not json")
        await folder.look()  # nor is it parsed
        assert "002.json.sig is of none" in details(place)["002.json"]
        assert value(backend) == 1.0


def test_rows_that_nobody_can_sign_for_are_no_option_beside_artifact_keys(
    keys: tuple[Path, Path],
) -> None:
    flags = ["--backend=fake", f"--artifact-keys={keys[1]}"]
    resolve([*flags, "--admin-updates=false"])
    with pytest.raises(
        ConfigError, match=r"come over the network \(admin.updates\) are not signed"
    ):
        resolve([*flags, "--admin-updates=true"])
