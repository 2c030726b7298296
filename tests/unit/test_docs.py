"""What the documents and hints tell people to type."""

import re
from pathlib import Path

import pytest

from app import cli

ROOT = Path(__file__).parents[2]
# On the public index this name is another project's.
FOREIGN = re.compile(r"pip install[^\n]*['\" ]narsil(?![\w/.-])")
# Without -e pip puts a copy beside the clone, which then wins over what the clone has.
COPIES = re.compile(r"pip install(?: -q)? ['\"]?\.\[")
FOLDERS = ("app", "backends", "docs", "loadtest", "scheduler", "transports")
TEXTS = sorted(
    path for folder in FOLDERS for kind in ("*.py", "*.md") for path in (ROOT / folder).rglob(kind)
)


def test_nothing_tells_to_install_the_public_index_s_narsil_which_is_not_ours() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in [*TEXTS, ROOT / "README.md", ROOT / "Makefile"]
        for line in path.read_text(encoding="utf-8").splitlines()
        if FOREIGN.search(line)
    ]
    assert len(TEXTS) > 100
    assert found == []


def test_extras_are_installed_into_the_clone_not_as_a_copy_of_it() -> None:
    found = [path.name for path in TEXTS if COPIES.search(path.read_text(encoding="utf-8"))]
    assert COPIES.search("pip install '.[arrow]' in its folder")
    assert found == []


def test_every_command_of_ours_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^  export-onnx write an artifact as an ONNX file", printed, re.MULTILINE)
    assert "from the package" not in printed


@pytest.mark.parametrize("line", ["pip install 'narsil[native]'", "pip install narsil"])
def test_the_search_would_find_it(line: str) -> None:
    assert FOREIGN.search(line)
