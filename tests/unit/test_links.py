"""Links among the documents lead somewhere: to a file that there is, and to a heading in it."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])


@cache
def tokens_of(page: Path) -> tuple[tuple[str, str], ...]:
    """Return ("link" or "image", its target) and ("heading", its anchor) of ``page``."""
    return tuple(found_in(page.read_text(encoding="utf-8")))


def found_in(text: str) -> Iterator[tuple[str, str]]:
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in zip([None, *tokens], tokens, strict=False):
        if before is not None and before.type == "heading_open":
            plain = "".join(each.content for each in token.children or ())
            yield "heading", anchor_of(plain)
        for each in token.children or ():
            if each.type == "link_open":
                yield "link", str(each.attrs["href"])
            elif each.type == "image":
                yield "image", str(each.attrs["src"])


def anchor_of(heading: str) -> str:
    """Return the anchor that code hosts and MyST give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def wrong_links(page: Path) -> list[str]:
    wrong = []
    for kind, target in tokens_of(page):
        if kind == "heading" or "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists():
            wrong.append(f"{target}: no such file")
        elif anchor and ("heading", anchor) not in tokens_of(other):
            wrong.append(f"{target}: no such heading")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_there_are(page: Path) -> None:
    assert wrong_links(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Its `head`: one\n[a](other.md) [b](#its-head-one) [c](#two) [d](https://x)\n"
    )
    assert wrong_links(page) == ["other.md: no such file", "#two: no such heading"]


def test_every_guide_is_linked_from_the_index() -> None:
    linked = {
        (DOCS / target.partition("#")[0]).resolve() for _, target in tokens_of(DOCS / "index.md")
    }
    guides = {*DOCS.glob("*.md"), *DOCS.glob("migrate/*.md")} - {DOCS / "index.md"}
    assert guides - linked == set()
