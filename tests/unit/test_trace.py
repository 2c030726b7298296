"""``traceparent``, as W3C Trace Context has it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports.trace import trace_id

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "text",
    [
        f"00-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-ff",
        f"01-{TRACE}-{PARENT}-01",
        f"cc-{TRACE}-{PARENT}-01-what-the-future-will-be-like",
    ],
)
def test_the_trace_is_found(text: str) -> None:
    assert trace_id(text) == TRACE


@pytest.mark.parametrize(
    "text",
    [
        "",
        TRACE,
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01-",
        f"ff-{TRACE}-{PARENT}-01",
        f"cc-{TRACE}-{PARENT}-01.more",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{PARENT}-01",
        f" 00-{TRACE}-{PARENT}-01",
    ],
)
def test_what_is_no_traceparent_names_no_trace(text: str) -> None:
    assert trace_id(text) == ""


@given(st.text() | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.*"))
def test_any_text_gives_a_trace_that_logs_can_carry_or_none(text: str) -> None:
    assert re.fullmatch("([0-9a-f]{32})?", trace_id(text))
