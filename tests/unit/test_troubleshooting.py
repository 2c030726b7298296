"""docs/troubleshooting.md quotes what the code says."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/troubleshooting.md"
FOLDERS = ("app", "backends", "loadtest", "scheduler", "transports")
# What a message has in the place of its values.
VALUE = "\0"
# As logging and str.format write a place for a value.
PLACES = re.compile(r"%[-0-9.,]*[sdrfgx]|(?<!\{)\{[^{}]*\}")


def quoted(text: str) -> list[str]:
    """Return what the tables under "it says" quote."""
    found: list[str] = []
    saying = False
    for line in text.splitlines():
        if not line.startswith("|"):
            saying = False
        elif line.startswith("| it says |"):
            saying = True
        elif saying and not line.startswith("|---"):
            cell = line.removeprefix("| ").split(" | ", 1)[0]
            found += re.findall(r"`([^`]+)`", cell)
    return found


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield every text of a module but its docstrings, a value standing in each place for one."""
    documents = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if node in documents:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (
                str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values
            )
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield PLACES.sub(VALUE, node.value)


@cache
def messages() -> str:
    """Return every text of the code, one a line."""
    found: list[str] = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            found += texts(ast.parse(path.read_text(encoding="utf-8")))
    return "\n".join(text.replace("\n", " ") for text in found)


def is_said(quote: str) -> bool:
    """Say whether some text of the code may come out as ``quote``, "..." being anything."""
    pattern = ".*".join(re.escape(part) for part in quote.split("..."))
    return re.search(pattern, messages()) is not None


@pytest.mark.parametrize("quote", quoted(PAGE.read_text(encoding="utf-8")))
def test_what_the_page_quotes_is_said_by_the_code(quote: str) -> None:
    assert is_said(quote)
    constant = [part for part in quote.split("...") if part.strip(" :;,")]
    assert constant, "a quote of nothing but values"


def test_a_message_that_nobody_says_any_more_is_noticed() -> None:
    page = (
        "| it says | why |\n|---|---|\n| `the model is tired: ...` | a |\n\n| other |\n| `no` |\n"
    )
    (quote,) = quoted(page)
    assert not is_said(quote)
    assert is_said("the model is still loading")
    assert len(quoted(PAGE.read_text(encoding="utf-8"))) > 60
