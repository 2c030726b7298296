"""The site that make docs builds, read from a disk in a browser that is given no network."""

import asyncio
from pathlib import Path

import pytest

from tests.clients.chromium import chromium
from tests.e2e.test_site import ROOT, build

pytestmark = pytest.mark.clients
# Waits for as long as the search may take, and says what it found and what was loaded.
FOUND = """async (least) => {
  const found = () => [...document.querySelectorAll("#search-results li a")];
  while (found().length < least) await new Promise((done) => setTimeout(done, 50));
  return {
    titles: found().map((one) => one.textContent),
    loaded: [...document.querySelectorAll("script[src], link[rel=stylesheet], img")].map(
      (one) => one.src || one.href),
  };
}"""


async def test_the_search_finds_a_setting_and_loads_nothing_but_files(tmp_path: Path) -> None:
    pytest.importorskip("furo", reason="make docs installs the documentation tools")
    done = await asyncio.to_thread(build, ROOT / "docs", tmp_path)
    assert done.returncode == 0, done.stderr
    async with chromium(tmp_path, []) as browser:
        await browser.open((tmp_path / "html" / "search.html").as_uri() + "?q=watchdog_s")
        seen = await browser.evaluate(FOUND, 2)
    assert "Configuration reference" in seen["titles"]
    assert seen["loaded"]
    assert all(name.startswith("file://") for name in seen["loaded"])
