"""The site that make docs builds: strict, and whole without a network."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What a browser would fetch by itself from another host, in pages and in style sheets.
FETCHED = re.compile(
    r"<(?:script|img|iframe)[^>]+src=[\"']?(?:https?:)?//"
    r"|<link[^>]+rel=[\"']?(?:stylesheet|icon|preload|preconnect)[^>]+href=[\"']?(?:https?:)?//"
    r"|@import[^;]+//|url\([\"']?(?:https?:)?//"
)

pytestmark = pytest.mark.slow


def build(docs: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build ``docs`` into ``out`` as the Makefile does."""
    (line,) = re.findall(r"-m (sphinx .*) -d build", (ROOT / "Makefile").read_text())
    folders = ["-d", str(out / "doctrees"), str(docs), str(out / "html")]
    command = [sys.executable, "-m", *line.split(), *folders]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of everything that the documents are made of or link to."""
    pytest.importorskip("furo", reason="make docs installs the documentation tools")
    root = tmp_path_factory.mktemp("site")
    for name in ("docs", "app", "backends", "examples", "scheduler", "transports"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("README.md", "SECURITY.md"):
        shutil.copy(ROOT / name, root / name)
    return root


def test_it_builds_and_fetches_nothing_from_another_host(copy: Path, tmp_path: Path) -> None:
    done = build(copy / "docs", tmp_path)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "html"
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(files) > 70
    wrong = [file.name for file in files if FETCHED.search(file.read_text(encoding="utf-8"))]
    assert wrong == []
    # A script, which browsers load from a disk too.
    assert (site / "searchindex.js").stat().st_size > 10_000


def test_broken_links_missing_headings_and_orphans_fail_it(copy: Path, tmp_path: Path) -> None:
    page = copy / "docs" / "lonely.md"
    page.write_text("# Lonely\n\n[a](nowhere.md) [b](tls.md#no-such-heading)\n")
    try:
        done = build(copy / "docs", tmp_path)
    finally:
        page.unlink()
    assert done.returncode != 0
    for said in ("nowhere.md", "no-such-heading", "isn't included in any toctree"):
        assert said in done.stderr, done.stderr


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js">',
        "<link rel=stylesheet href=//cdn.example/x.css>",
        "@font-face {src: url(https://fonts.example/a.woff)}",
    ],
)
def test_what_would_be_fetched_would_be_found(text: str) -> None:
    assert FETCHED.search(text)
