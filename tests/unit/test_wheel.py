"""A wheel of the project has what is no Python too."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STATIC = "transports/http/page/static"


@pytest.mark.slow
def test_a_wheel_has_every_file_of_the_page(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy: a build leaves files beside the sources
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "transports", source / "transports")
    command: list[str | Path] = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w"]
    subprocess.run([*command, tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("narsil-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(STATIC)}
    assert names == {f"{STATIC}/{each.name}" for each in (ROOT / STATIC).iterdir()}
    assert names
