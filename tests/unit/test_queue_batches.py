"""What one batch holds: who comes first, who shares it, where it ends."""

import math
from dataclasses import replace

import pytest

from scheduler.waiting import Limits
from tests.fixtures.entries import ROOMY, of_ids, queue_of, spans, waiting, who

AGEING_S = ROOMY.ageing_s


def test_invariant_1_one_look_takes_everything_that_waits_without_any_delay() -> None:
    entries = [waiting(2) for _ in range(5)]
    taken = queue_of(*entries).take(0.0)
    assert who(taken.batch) == entries
    assert all(piece.whole for piece in taken.batch)
    assert taken.wake_s is None


def test_a_batch_takes_the_oldest_first_and_stops_at_the_first_that_does_not_fit() -> None:
    first, second, third, fourth = waiting(4), waiting(6), waiting(10), waiting(1)
    queue = queue_of(first, second, third, fourth)
    assert who(queue.take(0.0).batch) == [first, second]
    assert who(queue.take(0.0).batch) == [third]
    assert who(queue.take(0.0).batch) == [fourth]


def test_a_small_request_does_not_overtake_a_large_one_that_does_not_fit() -> None:
    small, large, late = waiting(5), waiting(8), waiting(1)
    queue = queue_of(small, large, late)
    assert who(queue.take(0.0).batch) == [small]
    assert who(queue.take(0.0).batch) == [large, late]


def test_no_batch_exceeds_the_ids_that_one_may_hold() -> None:
    entries = [of_ids(4), of_ids(3), of_ids(3), of_ids(1)]
    queue = queue_of(*entries, limits=replace(ROOMY, max_batch_ids=10))
    taken = queue.take(0.0)
    assert who(taken.batch) == entries[:3]
    assert sum(piece.ids for piece in taken.batch) == 10


def test_no_batch_exceeds_the_requests_that_one_may_hold() -> None:
    entries = [waiting(1) for _ in range(3)]
    queue = queue_of(*entries, limits=replace(ROOMY, max_batch_requests=2))
    assert who(queue.take(0.0).batch) == entries[:2]
    assert who(queue.take(0.0).batch) == entries[2:]


def test_a_request_larger_than_a_batch_is_cut_where_rows_or_ids_run_out() -> None:
    large = of_ids(*[1] * 12, *[4] * 5, split=True)
    queue = queue_of(large, limits=replace(ROOMY, max_batch_ids=12))
    pieces = [queue.take(0.0).batch for _ in range(3)]
    assert [spans(batch) for batch in pieces] == [[(0, 10)], [(10, 14)], [(14, 17)]]
    assert [piece.ids for batch in pieces for piece in batch] == [10, 10, 12]
    assert len(queue) == 0


def test_a_large_request_is_cut_to_its_end_where_no_limit_bounds_the_ids() -> None:
    for max_batch_ids in (Limits(0, 0, 1).max_batch_ids, 2**64):
        limits = replace(ROOMY, max_batch_ids=max_batch_ids)
        queue = queue_of(of_ids(*[2] * 25, split=True), limits=limits)
        assert [spans(queue.take(0.0).batch) for _ in range(3)] == [
            [(0, 10)], [(10, 20)], [(20, 25)]
        ]  # fmt: skip


def test_a_large_request_fills_what_a_batch_has_left_and_a_small_one_joins_its_last_piece() -> None:
    small, large, late = of_ids(1, 1), of_ids(*[1] * 15, split=True), of_ids(1)
    queue = queue_of(small, large, late)
    first, second = queue.take(0.0), queue.take(0.0)
    assert who(first.batch) == [small, large]
    assert spans(first.batch) == [(0, 2), (0, 8)]
    assert who(second.batch) == [late, large]
    assert spans(second.batch) == [(0, 1), (8, 15)]


def test_rows_without_ids_join_a_piece_whose_ids_are_used_up() -> None:
    queue = queue_of(of_ids(2, 2, 0, 0, 1, split=True), limits=replace(ROOMY, max_batch_ids=4))
    assert spans(queue.take(0.0).batch) == [(0, 4)]


@pytest.mark.parametrize("timeout_s", [0.01, math.inf])
def test_a_higher_class_goes_first_among_those_that_arrived_within_ageing_s(
    timeout_s: float,
) -> None:
    low = waiting(1, priority=1, timeout_s=2 * AGEING_S)
    lower = waiting(1, priority=2, timeout_s=0.01 + 2 * AGEING_S)
    high = waiting(1, arrived_s=AGEING_S, timeout_s=timeout_s, priority=0)
    taken = queue_of(lower, low, high).take(AGEING_S)
    assert who(taken.batch) == [high, low, lower]


@pytest.mark.parametrize("priority", [1, 2, 3])
def test_a_class_outranks_those_above_it_once_it_has_aged_enough(priority: int) -> None:
    aged_s = (2 * priority + 1) * AGEING_S
    low = waiting(1, priority=priority)
    high = waiting(1, arrived_s=aged_s, timeout_s=0.01)
    assert who(queue_of(low, high).take(aged_s).batch) == [low, high]


def test_within_a_class_the_earliest_deadline_goes_first_and_none_goes_last() -> None:
    never, late = waiting(1), waiting(1, timeout_s=0.4)
    early, later_but_due_sooner = waiting(1, timeout_s=0.2), waiting(1, 0.1, timeout_s=0.05)
    taken = queue_of(never, late, early, later_but_due_sooner).take(0.1)
    assert who(taken.batch) == [later_but_due_sooner, early, late, never]


def test_deadlines_further_off_than_ageing_s_make_no_difference_first_come_first_served() -> None:
    never, later, soon = waiting(1), waiting(1, timeout_s=9.0), waiting(1, timeout_s=AGEING_S)
    assert who(queue_of(never, later, soon).take(0.0).batch) == [never, later, soon]


def test_equals_go_in_order_of_arrival() -> None:
    entries = [waiting(1, timeout_s=0.25, priority=1) for _ in range(10)]
    assert who(queue_of(*entries).take(0.0).batch) == entries


@pytest.mark.parametrize("priority", [0, 1, 3])
def test_nobody_starves_under_a_stream_of_urgent_newcomers(priority: int) -> None:
    patient = waiting(1, priority=priority)
    queue = queue_of(patient)
    now = 0.0
    while True:
        queue.push(waiting(10, now, timeout_s=0.05))
        taken = queue.take(now)
        if patient in who(taken.batch):
            break
        now += 0.01
    assert now <= (2 * priority + 1) * AGEING_S + 0.01


def test_a_large_request_does_not_starve_small_ones() -> None:
    large = of_ids(*[1] * 95, split=True)
    queue = queue_of(large)
    queue.take(0.0)
    small = [waiting(1, arrived_s=0.1) for _ in range(3)]
    for entry in small:
        queue.push(entry)
    queue.take(0.2)  # the rest was in line before them
    assert who(queue.take(0.3).batch) == [*small, large]


def test_small_newcomers_do_not_starve_the_rest_of_a_large_request() -> None:
    large = of_ids(*[1] * 30, split=True)
    queue = queue_of(large)
    now, rows_served = 0.0, 0
    while rows_served < 30:
        queue.push(waiting(10, now, timeout_s=0.05))
        taken = queue.take(now)
        rows_served += sum(piece.rows for piece in taken.batch if piece.waiting is large)
        now += 0.01
    assert now <= 3 * (AGEING_S + 0.02)


def test_a_request_of_another_group_at_the_head_of_the_line_never_holds_a_batch_back() -> None:
    plain = [waiting(3, arrived_s=number / 10) for number in range(3)]
    weighted = [waiting(3, arrived_s=number / 10 + 0.05, group=("weights",)) for number in range(3)]
    queue = queue_of(*[one for pair in zip(plain, weighted, strict=True) for one in pair])
    assert who(queue.take(0.3).batch) == plain
    assert who(queue.take(0.3).batch) == weighted


def test_groups_take_turns_by_who_is_first_in_line() -> None:
    plain, weighted = waiting(1, timeout_s=0.3), waiting(1, timeout_s=0.2, group=("weights",))
    queue = queue_of(plain, weighted)
    assert who(queue.take(0.0).batch) == [weighted]
    assert who(queue.take(0.0).batch) == [plain]


def test_invariant_4_a_deadline_that_has_passed_is_never_put_in_a_batch() -> None:
    early, late, never = waiting(1, timeout_s=5.0), waiting(1, timeout_s=6.0), waiting(1)
    taken = queue_of(early, late, never).take(5.0)
    assert who(taken.expired) == [early]
    assert who(taken.batch) == [late, never]


def test_expired_requests_take_no_room_in_the_batch() -> None:
    expired = [waiting(10, timeout_s=1.0) for _ in range(3)]
    alive = waiting(10)
    taken = queue_of(*expired, alive).take(1.0)
    assert who(taken.expired) == expired
    assert who(taken.batch) == [alive]


def test_expired_requests_behind_a_full_batch_stay_for_the_next_look() -> None:
    full, next_up, expired = waiting(10), waiting(1), waiting(1, timeout_s=1.0)
    queue = queue_of(full, next_up, expired)
    assert who(queue.take(1.0).expired) == []
    assert who(queue.take(1.0).expired) == [expired]


def test_the_rest_of_a_large_request_expires_with_it_and_says_where_it_begins() -> None:
    large = of_ids(*[1] * 15, split=True, timeout_s=1.0)
    queue = queue_of(large)
    queue.take(0.0)
    taken = queue.take(1.0)
    assert (who(taken.expired), spans(taken.expired)) == ([large], [(10, 15)])
    assert taken.batch == ()


def a_tenth_a_row(rows: int, ids: int) -> float:
    del ids
    return rows / 10


def test_a_batch_grows_no_further_than_the_earliest_deadline_in_it_allows() -> None:
    hurried = waiting(2, timeout_s=0.45)
    patient = [waiting(1) for _ in range(4)]
    queue = queue_of(hurried, *patient)
    first, second = queue.take(0.0, batch_s=a_tenth_a_row), queue.take(0.4, batch_s=a_tenth_a_row)
    assert who(first.batch) == [hurried, *patient[:2]]
    assert who(second.batch) == patient[2:]
    assert first.expired == second.expired == ()


def test_a_batch_takes_nobody_whose_own_deadline_it_would_miss() -> None:
    first, hurried = waiting(5, timeout_s=0.7), waiting(1, timeout_s=0.75, priority=1)
    queue = queue_of(first, hurried, waiting(2, priority=2))
    assert who(queue.take(0.0, batch_s=a_tenth_a_row).batch) == [first, hurried]
    queue = queue_of(first, waiting(3, timeout_s=0.75, priority=1))
    assert who(queue.take(0.0, batch_s=a_tenth_a_row).batch) == [first]


def test_a_request_that_would_miss_its_deadline_alone_expires_before_it_costs_anything() -> None:
    hopeless, possible = waiting(5, timeout_s=0.4), waiting(3, timeout_s=0.4)
    taken = queue_of(hopeless, possible).take(0.0, batch_s=a_tenth_a_row)
    assert who(taken.expired) == [hopeless]
    assert who(taken.batch) == [possible]


def test_a_forecast_that_nobody_can_meet_never_drops_a_request_without_deadline() -> None:
    patient = [waiting(5), waiting(5)]
    assert who(queue_of(*patient).take(0.0, batch_s=lambda rows, ids: 1e9).batch) == patient


def test_a_batch_that_takes_long_enough_grows_no_further() -> None:
    queue = queue_of(*[waiting(1) for _ in range(5)], waiting(4))
    sizes = []
    while len(queue):
        taken = queue.take(0.0, batch_s=a_tenth_a_row, enough_s=0.25)
        sizes.append([piece.rows for piece in taken.batch])
    assert sizes == [[1, 1, 1], [1, 1, 4]]


def test_a_crowd_is_taken_by_full_batches() -> None:
    queue = queue_of(*[waiting(1) for _ in range(8)])
    assert len(queue.take(0.0, batch_s=a_tenth_a_row, enough_s=0.21).batch) == 3
    queue = queue_of(*[waiting(1) for _ in range(8)])
    assert len(queue.take(0.0, batch_s=a_tenth_a_row, enough_s=0.19).batch) == 8


def test_one_request_that_takes_longer_than_enough_is_a_batch() -> None:
    queue = queue_of(waiting(5), waiting(5))
    assert len(queue.take(0.0, batch_s=a_tenth_a_row, enough_s=0.4).batch) == 1
    assert len(queue) == 1
