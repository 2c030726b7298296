"""Thousands of schedules of everything that can happen to an engine: see ``schedule``."""

import pytest

from tests.simulation.play import play_all

MANY = 50
DEFAULT = range(0, 400, MANY)
SLOW = range(400, 10_400, MANY)


@pytest.mark.parametrize("first", DEFAULT)
def test_whatever_happens_each_request_is_answered_once_and_rightly(first: int) -> None:
    play_all(range(first, first + MANY))


@pytest.mark.slow
@pytest.mark.parametrize("first", SLOW)
def test_in_ten_thousand_schedules_each_request_is_answered_once_and_rightly(first: int) -> None:
    play_all(range(first, first + MANY))
