import math

import pytest

from scheduler.errors import Code, ServingError
from scheduler.queue import Limits, RequestQueue, Waiting
from tests.fixtures.gates import make_request

ROOMY = Limits(max_queue_rows=100, max_queue_bytes=1 << 20, max_batch_rows=10)


def waiting(rows: int, arrived_s: float = 0.0, deadline_s: float = math.inf) -> Waiting:
    return Waiting(make_request(rows), arrived_s, deadline_s)


def queue_of(*entries: Waiting, limits: Limits = ROOMY) -> RequestQueue:
    queue = RequestQueue(limits)
    for entry in entries:
        queue.push(entry)
    return queue


def test_an_empty_queue_yields_nothing_and_asks_for_no_wake_up() -> None:
    for limits in (ROOMY, Limits(100, 1 << 20, 10, max_delay_s=1.0)):
        taken = queue_of(limits=limits).take(0.0)
        assert (taken.batch, taken.expired, taken.wake_s) == ((), (), None)


def test_invariant_1_one_look_takes_everything_that_waits_without_any_delay() -> None:
    entries = [waiting(2) for _ in range(5)]
    taken = queue_of(*entries).take(0.0)
    assert taken.batch == tuple(entries)
    assert taken.wake_s is None


def test_a_batch_takes_the_oldest_first_and_stops_at_the_first_that_does_not_fit() -> None:
    first, second, third, fourth = waiting(4), waiting(6), waiting(10), waiting(1)
    queue = queue_of(first, second, third, fourth)
    assert queue.take(0.0).batch == (first, second)
    assert queue.take(0.0).batch == (third,)
    assert queue.take(0.0).batch == (fourth,)


def test_a_small_request_does_not_overtake_a_large_one_that_does_not_fit() -> None:
    small, large, late = waiting(5), waiting(8), waiting(1)
    queue = queue_of(small, large, late)
    assert queue.take(0.0).batch == (small,)
    assert queue.take(0.0).batch == (large, late)


def test_invariant_2_the_queue_is_bounded_in_rows_and_the_refusal_names_the_limit() -> None:
    queue = queue_of(waiting(60))
    queue.push(waiting(40))
    with pytest.raises(ServingError) as refusal:
        queue.push(waiting(1))
    assert refusal.value.code is Code.OVERLOADED
    for fact in ("100 rows wait", "1 more", "limit of 100 rows", "max_queue_rows"):
        assert fact in refusal.value.detail
    assert queue.rows == 100
    assert len(queue) == 2


def test_invariant_2_the_queue_is_bounded_in_bytes_and_the_refusal_names_the_limit() -> None:
    entry = waiting(10)
    size_bytes = entry.request.size_bytes
    queue = queue_of(entry, limits=Limits(100, 2 * size_bytes, 10))
    queue.push(waiting(10))
    with pytest.raises(ServingError) as refusal:
        queue.push(waiting(1))
    assert refusal.value.code is Code.OVERLOADED
    for fact in (f"{2 * size_bytes} bytes wait", f"limit of {2 * size_bytes} bytes", "queue_bytes"):
        assert fact in refusal.value.detail
    assert queue.rows == 20


def test_what_leaves_the_queue_gives_its_rows_and_bytes_back() -> None:
    removed, taken, drained = waiting(10), waiting(10), waiting(10)
    expired = waiting(10, deadline_s=1.0)
    limits = Limits(10, removed.request.size_bytes, 10)
    queue = queue_of(removed, limits=limits)
    assert queue.remove(removed)
    queue.push(taken)
    assert queue.take(0.0).batch == (taken,)
    queue.push(expired)
    assert queue.take(2.0).expired == (expired,)
    queue.push(drained)
    assert queue.drain() == (drained,)
    assert queue.rows == 0
    queue.push(waiting(10))


def test_a_request_that_was_removed_is_never_taken_and_removing_it_again_says_so() -> None:
    first, second, third = waiting(1), waiting(1), waiting(1)
    queue = queue_of(first, second, third)
    assert queue.remove(second)
    assert not queue.remove(second)
    assert queue.take(0.0).batch == (first, third)
    assert not queue.remove(first)


def test_two_waits_for_one_request_are_two_entries() -> None:
    request = make_request(1)
    queue = queue_of(Waiting(request, 0.0), Waiting(request, 0.0))
    assert len(queue) == 2
    assert len(queue.take(0.0).batch) == 2


def test_invariant_4_a_deadline_that_has_passed_is_never_put_in_a_batch() -> None:
    early, late, never = waiting(1, deadline_s=5.0), waiting(1, deadline_s=6.0), waiting(1)
    taken = queue_of(early, late, never).take(5.0)
    assert taken.expired == (early,)
    assert taken.batch == (late, never)


def test_expired_requests_take_no_room_in_the_batch() -> None:
    expired = [waiting(10, deadline_s=1.0) for _ in range(3)]
    alive = waiting(10)
    taken = queue_of(*expired, alive).take(1.0)
    assert taken.expired == tuple(expired)
    assert taken.batch == (alive,)


def test_expired_requests_behind_a_full_batch_stay_for_the_next_look() -> None:
    full, next_up, expired = waiting(10), waiting(1), waiting(1, deadline_s=1.0)
    queue = queue_of(full, next_up, expired)
    assert queue.take(1.0).expired == ()
    assert queue.take(1.0).expired == (expired,)


DELAYED = Limits(100, 1 << 20, max_batch_rows=10, max_delay_s=2.0)


def test_max_delay_counts_from_the_arrival_of_the_oldest() -> None:
    first, second = waiting(1, arrived_s=10.0), waiting(1, arrived_s=11.5)
    queue = queue_of(first, second, limits=DELAYED)
    held = queue.take(11.9)
    assert (held.batch, held.wake_s) == ((), 12.0)
    assert queue.take(12.0).batch == (first, second)


def test_max_delay_does_not_hold_a_full_batch() -> None:
    entries = [waiting(5, arrived_s=10.0), waiting(5, arrived_s=10.0)]
    assert queue_of(*entries, limits=DELAYED).take(10.0).batch == tuple(entries)


def test_the_delay_starts_anew_when_the_oldest_leaves() -> None:
    first, second = waiting(1, arrived_s=10.0), waiting(1, arrived_s=11.5)
    queue = queue_of(first, second, limits=DELAYED)
    queue.remove(first)
    assert queue.take(12.0).wake_s == 13.5


def test_draining_returns_everything_in_order() -> None:
    entries = [waiting(3) for _ in range(4)]
    queue = queue_of(*entries)
    assert queue.drain() == tuple(entries)
    assert len(queue) == 0
    assert queue.drain() == ()
