"""Work beside requests comes in turns, with rests, and while nobody computes if that comes soon."""

from collections.abc import Callable

import pytest

from scheduler.pace import ASK_S, MOST_ASKED, REST, TURN_S, Pace


class Clock:
    """A thread's time of work, and how long it slept."""

    def __init__(self) -> None:
        self.worked_s = 0.0
        self.slept_s: list[float] = []

    def pace(self, idle: Callable[[], bool], *, oversleeps_s: float = 0.0) -> Pace:
        def now_s() -> float:
            return self.worked_s + sum(self.slept_s) + oversleeps_s * len(self.slept_s)

        return Pace(idle, lambda: self.worked_s, self.slept_s.append, now_s)


def test_a_short_turn_goes_on() -> None:
    clock = Clock()
    pace = clock.pace(lambda: False)
    clock.worked_s = TURN_S / 2
    pace.rest()
    assert clock.slept_s == []


def test_a_rest_is_as_much_longer_as_the_turn_was() -> None:
    clock = Clock()
    pace = clock.pace(lambda: True)
    for turn_s in (TURN_S, 5 * TURN_S):
        clock.worked_s += turn_s
        pace.rest()
        pace.rest()  # a new turn has begun
    assert clock.slept_s == pytest.approx([REST * TURN_S, 5 * REST * TURN_S])


def test_a_batch_that_computes_is_waited_for_and_one_that_goes_on_is_not() -> None:
    clock = Clock()
    clock.pace(lambda: len(clock.slept_s) == 2).wait_for_idle()
    assert clock.slept_s == [ASK_S] * 2
    clock.pace(lambda: False).wait_for_idle()
    assert clock.slept_s == [ASK_S] * (2 + MOST_ASKED)


def test_who_wakes_late_rests_no_more() -> None:
    clock = Clock()
    pace = clock.pace(lambda: True, oversleeps_s=0.1)
    for _ in range(20):
        clock.worked_s += TURN_S
        pace.rest()
    assert len(clock.slept_s) == 1
