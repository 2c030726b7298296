"""``narsil inspect`` of a model repository."""

import shutil
from pathlib import Path

import pytest

from backends.bring.inspect import main as inspect


@pytest.fixture
def root(small_artifact: Path, tmp_path: Path) -> Path:
    """A repository: an artifact, a lone file, a version for another backend; and what is none."""
    root = tmp_path / "models"
    shutil.copytree(small_artifact, root / "ranking" / "10")
    (root / "ranking" / "9").mkdir()
    shutil.copy(small_artifact / "model.pt", root / "ranking" / "9" / "mine.pt")
    (root / "stand-in" / "1").mkdir(parents=True)
    (root / "stand-in" / "config.toml").write_text('backend = "fake"\n')
    (root / "notes").mkdir()
    (root / "README.md").write_text("ours")
    return root


def test_a_repository_is_listed_model_by_model_and_version_by_version(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect([str(root)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "kind      model repository of 2",
        "model     ranking version 9: TorchScript model",
        "model     ranking version 10: artifact folder of narsil export",
        "model     stand-in version 1: for the backend of its config.toml",
        f"next      narsil serve --repository {root}",
    ]


def test_one_model_of_a_repository_is_told_by_its_versions(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect([str(root / "ranking")]) == 0
    kind, *_, following = capsys.readouterr().out.splitlines()
    assert kind == "kind      a model of a repository"
    assert following == f"next      narsil serve --repository {root}"


def test_a_version_that_nobody_knows_is_missing_something(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "stand-in" / "config.toml").unlink()
    assert inspect([str(root)]) == 1
    printed = capsys.readouterr().out
    assert "model     stand-in version 1: ?" in printed
    assert f"missing   {root / 'stand-in' / '1'} is no folder of a model: " in printed


def test_a_folder_of_neither_is_refused_as_before(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect([str(root / "notes")]) == 1
    assert capsys.readouterr().err.endswith(", nor models with numbered versions\n")
