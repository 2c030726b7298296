"""Every edge of the scheduler's options, and every combination that could not work."""

import math
from dataclasses import fields
from typing import Any

import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.options import MODES, ON_FAILURE, SchedulerOptions

SPEC = FakeBackend(FakeOptions(max_batch_rows=8)).spec
COUNTS = ["max_queue_rows", "max_queue_bytes", "max_batch_ids", "max_request_rows", "priorities"]
SECONDS = ["max_delay_s", "inline_below_s", "watchdog_s"]


def options(**values: Any) -> SchedulerOptions:
    return SchedulerOptions(**values)


def refusal_of(**values: Any) -> str:
    with pytest.raises(ValueError) as refusal:
        options(**values)
    return str(refusal.value)


def test_every_option_says_what_it_is_for() -> None:
    assert all(option.metadata["help"] for option in fields(SchedulerOptions))


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_may_be_one_or_very_large(name: str) -> None:
    for value in (1, 2**80):
        assert getattr(options(**{name: value}), name) == value


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1])
def test_a_count_below_one_is_refused_by_name(name: str, value: int) -> None:
    assert refusal_of(**{name: value}) == f"{name} must be at least 1, got {value}"


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", [0.0, 1e-9, 1e9])
def test_seconds_may_be_zero_or_any_number_above(name: str, value: float) -> None:
    assert getattr(options(**{name: value}), name) == value


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", [-1e-9, math.inf, -math.inf, math.nan])
def test_seconds_that_are_negative_or_no_number_are_refused_by_name(
    name: str, value: float
) -> None:
    assert refusal_of(**{name: value}) == f"{name} must be 0 or more, got {value:g}"


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_ageing_that_is_not_above_zero_is_refused_by_name(value: float) -> None:
    assert refusal_of(ageing_s=value) == f"ageing_s must be above 0, got {value:g}"


@pytest.mark.parametrize("value", [1e-9, 1e9])
def test_ageing_may_be_any_number_above_zero(value: float) -> None:
    assert options(ageing_s=value).limits(SPEC).ageing_s == value


@pytest.mark.parametrize(("name", "known"), [("mode", MODES), ("on_failure", ON_FAILURE)])
def test_a_choice_that_there_is_not_is_refused_naming_those_there_are(
    name: str, known: tuple[str, ...]
) -> None:
    for value in known:
        assert getattr(options(**{name: value}), name) == value
    for value in ("", known[0].upper(), "other"):
        assert refusal_of(**{name: value}) == f"{name} must be {' or '.join(known)}, got {value!r}"


@pytest.mark.parametrize("mode", ["worker", "inline"])
def test_a_delay_that_gathers_batches_is_refused_where_none_are_formed(mode: str) -> None:
    detail = refusal_of(mode=mode, max_delay_s=0.001)
    assert "max_delay_s" in detail
    assert repr(mode) in detail
    options(mode=mode, max_delay_s=0.0)


def test_field_report_a8_a_queue_smaller_than_a_batch_still_holds_a_full_one() -> None:
    assert options(max_queue_rows=1).limits(SPEC).max_queue_rows == 8
    assert options(max_queue_rows=9).limits(SPEC).max_queue_rows == 9


def test_only_batch_mode_lets_requests_share_a_batch() -> None:
    most = {mode: options(mode=mode).limits(SPEC).max_batch_requests for mode in MODES}
    assert most == {"batch": 0, "worker": 1, "inline": 1}


def test_every_other_limit_is_as_the_options_and_the_model_say() -> None:
    limits = options(
        max_queue_bytes=1000, max_batch_ids=50, max_delay_s=0.25, ageing_s=0.125
    ).limits(SPEC)
    assert limits.max_queue_bytes == 1000
    assert limits.max_batch_rows == 8
    assert limits.max_batch_ids == 50
    assert limits.max_delay_s == 0.25
    assert limits.ageing_s == 0.125
