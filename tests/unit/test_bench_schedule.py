"""Arrivals are computed before the run, and are what was asked for."""

from pathlib import Path

import numpy as np
import pytest

from loadtest import schedule


@pytest.mark.parametrize("text", ["constant", "poisson", "burst:20", "step:1+1"])
def test_every_kind_offers_exactly_the_rate(text: str) -> None:
    times = schedule.parse(text).times(500.0, 4.0, seed=3)
    assert len(times) == 2000
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] < 4.0


def test_the_same_seed_gives_the_same_times() -> None:
    poisson = schedule.parse("poisson")
    np.testing.assert_array_equal(poisson.times(50, 2, seed=1), poisson.times(50, 2, seed=1))
    assert (poisson.times(50, 2, seed=1) != poisson.times(50, 2, seed=2)).any()


def test_poisson_gaps_vary_as_much_as_they_last() -> None:
    gaps = np.diff(schedule.parse("poisson").times(1000, 20, seed=1))
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


def test_a_burst_comes_at_one_time() -> None:
    times = schedule.parse("burst:4").times(8, 2, seed=0)
    np.testing.assert_allclose(times, np.repeat([0, 0.5, 1, 1.5], 4))


def test_steps_share_the_time_and_scale_the_rate() -> None:
    times = schedule.parse("step:0.5+2").times(100, 4, seed=0)
    assert [(times < 2).sum(), (times >= 2).sum()] == [100, 400]


def test_a_trace_is_replayed_in_rounds_at_its_own_rate_or_another(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text("10\n10.5\n12\n")
    assert schedule.trace_rate(str(trace)) == 1.0
    arrivals = schedule.parse(f"trace:{trace}")
    np.testing.assert_allclose(arrivals.times(1, 6, seed=0), [0, 0.5, 2, 3, 3.5, 5])
    np.testing.assert_allclose(arrivals.times(2, 1.6, seed=0), [0, 0.25, 1, 1.5])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("uniform", "no arrivals 'uniform'"),
        ("burst", "burst:50"),
        ("poisson:3", "write constant"),
    ],
)
def test_arrivals_that_there_are_not_are_refused(text: str, said: str) -> None:
    with pytest.raises(schedule.ScheduleError, match=said):
        schedule.parse(text)


@pytest.mark.parametrize("text", ["burst:-1", "step:1+x", "trace:/nowhere"])
def test_details_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(schedule.ScheduleError, match=text.partition(":")[0]):
        schedule.parse(text).times(10, 1, seed=0)


def test_a_trace_of_one_time_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text("1\n1\n")
    with pytest.raises(schedule.ScheduleError, match="two different times"):
        schedule.trace_rate(str(trace))
