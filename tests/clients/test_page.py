"""The admin listener's page in a real browser. Its pictures are left in build/page/."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.fake import FakeBackend
from scheduler.types import ModelSpec
from tests.clients import tools
from tests.clients.chromium import Chromium, chromium
from tests.fixtures.page import EXAMPLE, MARKUP, Page, page_served

pytestmark = pytest.mark.clients

PICTURES = Path(__file__).parents[2] / "build" / "page"
# What a person sees of an element.
TEXT = "async (selector) => document.querySelector(selector).innerText"
CHOOSE = """async (selector, text) => {
  const select = document.querySelector(selector);
  select.value = [...select.options].find((one) => one.text === text).value;
  select.dispatchEvent(new Event("change"));
}"""
CLICK = "async (selector) => document.querySelector(selector).click()"
# Rules of WCAG 2.2 A and AA, and what axe holds good practice.
AXE = """async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  return found.violations.map(({id, nodes}) => [id, nodes.map(({html}) => html.slice(0, 200))]);
}"""
THREE_SECONDS = """async () => {
  const next = async () => (await (await fetch("/live?since=9007199254740991")).json()).next;
  const end = (await next()) + 3;
  while ((await next()) < end) await new Promise((wake) => setTimeout(wake, 50));
}"""
DRAWN = "Chart.getChart(document.querySelector('.plot canvas'))?.data.datasets[0].data.length"
# Is the first line of the first chart drawn in the colour that its legend has now?
COLOURED = """(() => {
  const style = getComputedStyle(document.querySelector(".sample.line0"));
  const wanted = style.borderTopColor.match(/\\d+/g).map(Number);
  const canvas = document.querySelector(".plot canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const same = (at) => data[at + 3] > 200 && wanted.every((each, part) => each === data[at + part]);
  return data.some((_, at) => at % 4 === 0 && same(at));
})()"""
LEGEND = """async () => {
  return getComputedStyle(document.querySelector(".sample.line0")).borderTopColor;
}"""
NOTE_REFUSALS = """window.refusals = [];
addEventListener("securitypolicyviolation", (event) => {
  window.refusals.push(`${event.violatedDirective}: ${event.blockedURI}`);
});"""
OPEN_ALL = """async () => {
  for (const each of document.querySelectorAll("details")) each.open = true;
}"""


class Second(FakeBackend):
    """Another version."""

    @property
    def spec(self) -> ModelSpec:
        """The same tensors."""
        return replace(super().spec, version="2")


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with page_served() as served:
        yield served


@pytest.fixture
async def tab(page: Page, tmp_path: Path) -> AsyncIterator[Chromium]:
    async with chromium(tmp_path, []) as opened:
        await opened.look(width=1280)
        await opened.before_each_page(NOTE_REFUSALS)
        await opened.open(f"{page.url}/")
        await until(opened, "document.querySelector('#playground tbody tr')")
        yield opened


async def until(tab: Chromium, condition: str) -> None:
    look = f"while (!({condition})) await new Promise(requestAnimationFrame);"
    async with asyncio.timeout(30):
        await tab.evaluate(f"async () => {{ {look} }}")


async def text(tab: Chromium, selector: str) -> str:
    said: str = await tab.evaluate(TEXT, selector)
    return said


async def ask(page: Page) -> None:
    """Send some good requests and a bad one."""
    async with httpx.AsyncClient(base_url=page.http, timeout=60) as client:
        for _ in range(20):
            await client.post("/v1/predict", json=EXAMPLE)
        await client.post("/v1/predict", json={MARKUP: 1})


async def violations(tab: Chromium) -> Any:
    (axe,) = (tools.FOLDER / "venv").glob("lib/python3*/site-packages/*/axe.min.js")
    await tab.evaluate(f"async () => {{ {axe.read_text('utf-8')} }}")
    return await tab.evaluate(AXE)


async def test_a_user_is_picked_and_the_best_movies_come_with_scores_and_latency(
    tab: Chromium,
) -> None:
    first = (await text(tab, "#playground tbody")).splitlines()
    assert MARKUP in first[0]  # the best, and a title is a title
    assert "movies scored by version 1 in" in await text(tab, "#playground [role=status]")
    assert "Seen" not in await text(tab, "#playground tbody")
    await tab.evaluate(CLICK, "#playground input[type=checkbox]")
    await until(tab, "document.querySelector('#playground tbody').innerText.includes('Seen')")
    assert await tab.evaluate("async () => window.stolen ?? null") is None


async def test_a_row_is_scored_from_a_form_made_from_the_spec(tab: Chromium) -> None:
    await tab.evaluate(OPEN_ALL)
    await tab.evaluate(CLICK, "#playground form button")
    await until(tab, "document.querySelector('#playground details').innerText.includes('46.5')")
    sent = await tab.evaluate("async () => document.querySelector('#playground textarea').value")
    assert json.loads(sent) == {
        "float_features": [[0.5, 1, 2]],
        "id_list_features": {"cat_0": [[3, 17, 4]], "cat_1": [[7]]},
    }
    await tab.evaluate("async () => { document.querySelector('textarea').value = '[]'; }")
    await tab.evaluate(CLICK, "#playground details details button")
    await until(tab, "document.querySelector('#playground details').innerText.includes('object')")


async def test_each_version_that_is_served_can_be_asked_by_itself(
    page: Page, tab: Chromium
) -> None:
    await page.engine.swap(Second(FakeBackend.Options()), others=False)
    await until(tab, "document.querySelector('#asked').options.length === 3")
    texts = "async () => [...document.querySelector('#asked').options].map((one) => one.text)"
    assert await tab.evaluate(texts) == [
        "fake, as it is routed", "fake version 1", "fake version 2",
    ]  # fmt: skip
    for version in ("2", "1"):
        await tab.evaluate(CHOOSE, "#asked", f"fake version {version}")
        said = f"movies scored by version {version} in"
        note = "document.querySelector('#playground [role=status]')"
        await until(tab, f"{note}.innerText.includes('{said}')")
        await tab.evaluate(OPEN_ALL)
        await tab.evaluate(CLICK, "#playground form button")
        said = f"1 row scored by version {version} in"
        await until(tab, f"document.querySelector('#playground').innerText.includes('{said}')")
    properties = await text(tab, "#models")
    assert "Everything about fake 2" in properties
    assert properties.count("scheduler.mode") == 2


async def test_figures_move_and_errors_are_told_as_text(page: Page, tab: Chromium) -> None:
    await ask(page)
    await until(tab, "document.querySelector('#errors code')")
    assert MARKUP[:20] in await text(tab, "#errors")
    await until(tab, DRAWN)
    assert (await text(tab, "#tiles dd")).endswith("/s")
    assert await text(tab, "#state") == "ready"
    page.engine.drain()
    await until(tab, "document.querySelector('#state').innerText === 'draining'")
    assert await tab.evaluate("async () => window.stolen ?? null") is None


async def test_a_chart_is_read_with_the_keys(tab: Chromium) -> None:
    await until(tab, f"{DRAWN} > 1")
    await tab.evaluate("async () => document.querySelector('.plot').focus()")
    await tab.press("ArrowLeft")
    said = await tab.evaluate("async () => document.querySelector('.plot').ariaValueText")
    assert said.startswith("1 seconds ago: requests ")
    await tab.press("Escape")
    said = await tab.evaluate("async () => document.querySelector('.plot').ariaValueText")
    assert said.startswith("now: requests ")


async def test_charts_take_the_style_sheets_colours_and_follow_them(tab: Chromium) -> None:
    await until(tab, f"{DRAWN} && {COLOURED}")
    await tab.evaluate(CLICK, "#pause")  # so that nothing else has them drawn again
    for scheme in ({"dark": True, "forced": True}, {"dark": True}, {}):
        before = await tab.evaluate(LEGEND)
        await tab.look(width=1280, **scheme)
        await until(tab, COLOURED)
        assert await tab.evaluate(LEGEND) != before
    assert await tab.evaluate("async () => window.refusals") == []


async def test_without_the_charts_library_the_page_says_so_and_has_its_tables(
    page: Page, tab: Chromium
) -> None:
    await tab.block("*/Chart.bundle.js")
    await tab.open(f"{page.url}/")
    await until(tab, "document.querySelector('#tiles dd').innerText.endsWith('/s')")
    assert "chartkick" in await text(tab, "#charts")
    assert await tab.evaluate("async () => document.querySelector('.plot')") is None
    await tab.evaluate(OPEN_ALL)
    await until(tab, "document.querySelector('#charts tbody tr')")


async def test_pause_stops_the_asking_and_going_on_makes_up_for_it(
    page: Page, tab: Chromium
) -> None:
    await tab.evaluate(CLICK, "#pause")
    assert await tab.evaluate("async () => document.querySelector('#pause').ariaPressed") == "true"
    await ask(page)
    await tab.evaluate(THREE_SECONDS)  # of the server's: the page would have asked by then
    assert await tab.evaluate("async () => document.querySelector('#errors code')") is None
    await tab.evaluate(CLICK, "#pause")
    await until(tab, "document.querySelector('#errors code')")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_it_is_accessible_and_fits(page: Page, tab: Chromium, width: int, dark: bool) -> None:
    await ask(page)
    await until(tab, "document.querySelector('#errors code')")
    await tab.look(width=width, dark=dark)
    await until(tab, f"document.querySelector('.plot canvas').clientWidth < {width}")
    await tab.screenshot(PICTURES / f"{'dark' if dark else 'light'}-{width}.png")
    assert await tab.evaluate("async () => window.refusals") == []
    await tab.evaluate(OPEN_ALL)
    assert await violations(tab) == []
    assert await tab.evaluate("async () => document.documentElement.scrollWidth") <= width
