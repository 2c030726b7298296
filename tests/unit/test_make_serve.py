"""``make serve``: which model it serves, and what it says when the data cannot be had."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Stands for the command: writes down what it was told, and what an export leaves.
STUB = """#!/bin/sh
echo "$@" >> "{told}"
case "$1" in
train) exit {trains} ;;
export) mkdir -p "$2" && touch "$2/manifest.json" ;;
esac
"""


def make_serve(folder: Path, trains: int, *arguments: str) -> tuple[list[str], str, int]:
    """Return what ``narsil`` was told, what was printed, and the exit status."""
    told, bin_folder = folder / "told", folder / ".venv/bin"
    bin_folder.mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    stub = bin_folder / "narsil"
    stub.write_text(STUB.format(told=told, trains=trains))
    stub.chmod(0o755)
    command = ["make", "-f", str(ROOT / "Makefile"), "-o", ".venv/.installed-cpu", "serve"]
    alone = {"PATH": os.environ["PATH"]}  # nothing of a make that runs the tests
    done = subprocess.run(
        [*command, *arguments], cwd=folder, env=alone, capture_output=True, text=True, check=False
    )
    return told.read_text().splitlines(), done.stdout, done.returncode


def test_without_the_data_the_seeded_model_is_served_and_that_is_said(tmp_path: Path) -> None:
    told, said, status = make_serve(tmp_path, 3)
    assert told == [
        "train movielens artifacts/movielens --device cpu",
        "export artifacts/reference --preset reference --device cpu",
        "serve artifacts/reference --device cpu",
    ]
    assert "NO MOVIELENS DATA: serving artifacts/reference instead" in said
    assert status == 0


def test_any_other_failure_of_the_training_ends_it(tmp_path: Path) -> None:
    told, said, status = make_serve(tmp_path, 1)
    assert told == ["train movielens artifacts/movielens --device cpu"]
    assert "NO MOVIELENS DATA" not in said
    assert status != 0


@pytest.mark.parametrize("model", ["artifacts/movielens", "artifacts/mine"])
def test_a_model_that_is_there_is_served_as_it_is(tmp_path: Path, model: str) -> None:
    (tmp_path / model).mkdir(parents=True)
    (tmp_path / model / "manifest.json").touch()
    told, _, status = make_serve(tmp_path, 0, f"MODEL={model}", "ARGS=--http-port 0")
    assert told == [f"serve {model} --device cpu --http-port 0"]
    assert status == 0


def test_a_model_that_is_not_there_is_left_to_the_server_to_refuse(tmp_path: Path) -> None:
    told, said, _ = make_serve(tmp_path, 0, "MODEL=artifacts/movilens")
    assert told == ["serve artifacts/movilens --device cpu"]
    assert "NO MOVIELENS DATA" not in said
