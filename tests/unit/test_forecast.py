"""What the forecast learns from batches, and when it says nothing."""

import random
from collections.abc import Iterator
from dataclasses import replace
from statistics import mean

import pytest

from scheduler.forecast import ENOUGH, HAND_OFF_S, MAX_STRETCH, MIN_BATCHES, STALE_S, Forecast
from scheduler.waiting import Limits, Load

LIMITS = Limits(1 << 16, 1 << 28, max_batch_rows=1024, max_batch_ids=1 << 18)


def cost_s(rows: int, ids: int) -> float:
    """Half a millisecond, 10 us a row and 0.2 us an id."""
    return 0.0005 + rows * 10e-6 + ids * 0.2e-6


def batches(
    count: int,
    seed: int,
    most_ids: int = 60,
    noise: float = 0.05,
    slower: float = 1.0,
    most_rows: int = 1024,
) -> Iterator[tuple[int, int, float]]:
    """Yield rows, ids and seconds of batches that each have up to ``most_ids`` ids a row."""
    chance = random.Random(seed)
    for _ in range(count):
        rows = chance.randint(1, most_rows)
        ids = rows * chance.randint(min(20, most_ids), most_ids)
        yield rows, ids, slower * cost_s(rows, ids) * (1 + noise * chance.uniform(-1, 1))


def learnt(*streams: Iterator[tuple[int, int, float]], lanes: int = 1) -> Forecast:
    forecast = Forecast(LIMITS, lanes)
    for stream in streams:
        observe(forecast, stream)
    return forecast


def observe(forecast: Forecast, stream: Iterator[tuple[int, int, float]]) -> None:
    for rows, ids, seconds in stream:
        forecast.observe(rows, ids, seconds, 0.0)


def errors(forecast: Forecast, most_ids: int = 60, slower: float = 1.0) -> list[float]:
    return [
        abs(forecast.batch_s(rows, ids) / seconds - 1)
        for rows, ids, seconds in batches(500, 99, most_ids, noise=0.0, slower=slower)
    ]


def test_the_forecast_is_silent_until_it_has_seen_enough_batches() -> None:
    forecast = learnt(batches(MIN_BATCHES - 1, seed=1))
    assert not forecast.known(0.0)
    assert forecast.at(0.0)(1000, 30_000) == 0.0
    observe(forecast, batches(1, seed=2))
    assert forecast.known(0.0)
    assert forecast.at(0.0)(1000, 30_000) >= forecast.batch_s(1000, 30_000) > 0.0


def test_a_batch_is_large_enough_once_its_overhead_is_a_small_part() -> None:
    forecast = learnt(batches(100, seed=1, noise=0.0))
    assert forecast.enough_s == pytest.approx(ENOUGH * cost_s(0, 0), rel=0.05)


def test_what_is_large_enough_pays_for_the_way_to_a_lane_too() -> None:
    assert Forecast(LIMITS, 1).enough_s >= 10 * HAND_OFF_S


def test_the_forecast_falls_silent_when_no_batch_has_run_for_long() -> None:
    forecast = learnt(batches(20, seed=1))
    assert forecast.known(STALE_S)
    assert not forecast.known(STALE_S + 0.001)
    assert forecast.at(STALE_S + 0.001)(1000, 30_000) == 0.0


def test_a_forecast_that_let_nothing_run_learns_anew_after_the_silence() -> None:
    forecast = learnt(batches(100, seed=1, slower=100.0))
    for number, (rows, ids, seconds) in enumerate(batches(10, seed=2)):
        forecast.observe(rows, ids, seconds, now=10.0 + number / 100)
    assert mean(errors(forecast)) < 0.25


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most_ids", [20, 30, 60, 250, 1000])
@pytest.mark.parametrize(("count", "error"), [(8, 0.1), (100, 0.05)])
def test_the_forecast_is_close_to_the_cost_after_a_few_noisy_batches(
    seed: int, most_ids: int, count: int, error: float
) -> None:
    assert mean(errors(learnt(batches(count, seed, most_ids)), most_ids)) < error


@pytest.mark.parametrize("seed", range(5))
def test_small_batches_tell_what_a_full_one_will_take(seed: int) -> None:
    forecast = learnt(batches(100, seed, most_rows=20))
    assert forecast.batch_s(1024, 40_000) == pytest.approx(cost_s(1024, 40_000), rel=0.25)


@pytest.mark.parametrize("seed", range(5))
def test_most_batches_take_no_longer_than_is_planned_for(seed: int) -> None:
    planned_s = learnt(batches(100, seed, noise=0.2)).at(0.0)
    kept = [seconds <= planned_s(rows, ids) for rows, ids, seconds in batches(500, 99, noise=0.2)]
    assert mean(kept) > 0.9


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("times", [0.01, 100.0])
def test_one_batch_far_off_the_forecast_hardly_moves_it(seed: int, times: float) -> None:
    forecast = learnt(batches(100, seed))
    forecast.observe(500, 15_000, times * cost_s(500, 15_000), 0.0)
    for more in range(4):
        observe(forecast, batches(5, more))
        assert forecast.batch_s(500, 15_000) == pytest.approx(cost_s(500, 15_000), rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_a_pause_in_every_tenth_batch_hardly_moves_the_forecast(seed: int) -> None:
    forecast = learnt(batches(100, seed))
    for number, (rows, ids, seconds) in enumerate(batches(400, seed + 10)):
        forecast.observe(rows, ids, seconds * (20 if number % 10 == 0 else 1), 0.0)
    assert forecast.batch_s(500, 15_000) == pytest.approx(cost_s(500, 15_000), rel=0.15)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slower", [0.5, 2.0, 5.0])
def test_the_forecast_follows_a_lasting_change_within_eighty_batches(
    seed: int, slower: float
) -> None:
    forecast = learnt(batches(300, seed), batches(80, seed + 10, slower=slower))
    assert mean(errors(forecast, slower=slower)) < 0.25


def test_the_forecast_follows_a_lasting_change_after_any_number_of_equal_batches() -> None:
    forecast = Forecast(LIMITS, lanes=1)
    for seconds in [0.01] * 10_000 + [0.02] * 80:
        forecast.observe(500, 15_000, seconds, 0.0)
    assert forecast.batch_s(500, 15_000) == pytest.approx(0.02, rel=0.2)


def test_a_first_batch_that_took_no_time_at_all_teaches_nothing_for_good() -> None:
    forecast = learnt(iter([(1, 0, 0.0)]), batches(100, seed=1))
    assert mean(errors(forecast)) < 0.2


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_forecast_is_never_negative_and_never_falls_with_rows_or_ids(
    seed: int, noise: float
) -> None:
    forecast = Forecast(LIMITS, lanes=1)
    steps = [0, 1, 10, 1000, 100_000]
    for rows, ids, seconds in batches(100, seed, noise=noise):
        forecast.observe(rows, ids, seconds, 0.0)
        by_rows = [forecast.batch_s(step, ids) for step in steps]
        by_ids = [forecast.batch_s(rows, step) for step in steps]
        assert min(by_rows) >= 0.0
        assert min(by_ids) >= 0.0
        assert by_rows == sorted(by_rows)
        assert by_ids == sorted(by_ids)


def test_batches_that_get_cheaper_as_they_grow_still_give_no_negative_forecast() -> None:
    forecast = Forecast(LIMITS, lanes=1)
    for rows in [1, 1024] * 50:
        forecast.observe(rows, 30 * rows, 1.0 / rows, 0.0)
    assert forecast.batch_s(0, 0) >= 0.0
    assert forecast.batch_s(1024, 30 * 1024) >= forecast.batch_s(1, 30)


def exact(limits: Limits = LIMITS, lanes: int = 1) -> Forecast:
    """Return a forecast that has seen a batch of nothing take 10 ms, and so knows overhead only."""
    forecast = Forecast(limits, lanes)
    forecast.observe(0, 0, 0.010, 0.0)
    return forecast


@pytest.mark.parametrize(
    ("load", "overheads"),
    [
        (Load(0, 0, 0), 1),
        (Load(1, 1024, 1 << 18), 1),
        (Load(2, 1025, 0), 2),
        (Load(9, 1, 3 << 18), 3),
        (Load(9, 4096, 3 << 18), 4),
    ],
)
def test_a_load_costs_the_overhead_of_every_batch_that_its_rows_or_ids_fill(
    load: Load, overheads: int
) -> None:
    assert exact().all_s(load) == pytest.approx(overheads * 0.010, rel=1e-3)


def test_where_requests_run_alone_each_costs_its_overhead() -> None:
    limits = replace(LIMITS, max_batch_requests=1)
    assert exact(limits).all_s(Load(7, 7, 7)) == pytest.approx(0.070, rel=1e-3)


def test_what_is_under_way_comes_before_a_load() -> None:
    assert exact().all_s(Load(1, 1, 1), under_way_s=0.005) == pytest.approx(0.015, rel=1e-3)


def test_lanes_share_a_load() -> None:
    load = Load(64, 64 * 1024, 0)
    assert exact(lanes=4).all_s(load) == pytest.approx(exact().all_s(load) / 4)


def test_waits_that_turn_out_longer_than_forecast_stretch_the_next_forecast() -> None:
    load = Load(64, 64 * 1024, 0)
    forecast = exact()
    alone_s = forecast.all_s(load)
    for _ in range(50):
        forecast.came_true(forecast.all_s(load), 2 * alone_s)
    assert forecast.all_s(load) == pytest.approx(2 * alone_s, rel=0.05)
    for _ in range(50):
        forecast.came_true(forecast.all_s(load), alone_s)
    assert forecast.all_s(load) == pytest.approx(alone_s, rel=0.05)


@pytest.mark.parametrize(("times", "stretch"), [(1000.0, MAX_STRETCH), (0.001, 1.0)])
def test_waits_stretch_the_forecast_within_bounds(times: float, stretch: float) -> None:
    load = Load(64, 64 * 1024, 0)
    forecast = exact()
    alone_s = forecast.all_s(load)
    for _ in range(100):
        forecast.came_true(forecast.all_s(load), times * alone_s)
    assert forecast.all_s(load) == pytest.approx(stretch * alone_s)


def test_a_wait_that_nobody_forecast_teaches_nothing() -> None:
    load = Load(1, 1, 1)
    forecast = exact()
    before_s = forecast.all_s(load)
    forecast.came_true(0.0, 5.0)
    assert forecast.all_s(load) == before_s


def test_the_waits_of_one_class_stretch_no_other_ones_forecast() -> None:
    load = Load(64, 64 * 1024, 0)
    forecast = exact()
    alone_s = forecast.all_s(load)
    for _ in range(50):
        forecast.came_true(forecast.all_s(load, priority=2), 2 * alone_s, priority=2)
    assert forecast.all_s(load, priority=2) == pytest.approx(2 * alone_s, rel=0.05)
    assert forecast.all_s(load, priority=0) == forecast.all_s(load, priority=1) == alone_s


def test_one_slow_batch_moves_little_and_a_lasting_change_is_believed() -> None:
    once, lasting = learnt(batches(100, seed=3)), learnt(batches(100, seed=3))
    usual_s = cost_s(512, 15_000)
    for number in range(16):
        once.observe(512, 15_000, usual_s * (1 if number else 3), now=1.0)
        lasting.observe(512, 15_000, usual_s * 3, now=1.0)
    assert once.batch_s(512, 15_000) < 1.1 * usual_s
    assert lasting.batch_s(512, 15_000) > 1.5 * usual_s


def test_what_was_learnt_before_a_silence_counts_again_if_the_next_batch_agrees() -> None:
    forecast = learnt(batches(100, seed=3))
    assert not forecast.known(10.0)
    forecast.observe(512, 15_000, 1.2 * cost_s(512, 15_000), now=10.0)
    assert forecast.known(10.0)
    assert forecast.batch_s(1024, 40_000) == pytest.approx(cost_s(1024, 40_000), rel=0.1)
