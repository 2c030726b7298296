"""What the queue admits, what leaves it, and how long max_delay holds it."""

from dataclasses import replace

import pytest

from scheduler.errors import Code, ServingError
from scheduler.queue import RequestQueue
from scheduler.types import InferRequest
from scheduler.waiting import Limits, Load, Taken, Waiting
from tests.fixtures.entries import ROOMY, of_ids, queue_of, spans, waiting, who

DELAYED = replace(ROOMY, max_delay_s=2.0)


def heap_entries(queue: RequestQueue) -> int:
    return sum(map(len, queue._heaps.values()))


def test_an_empty_queue_yields_nothing_and_asks_for_no_wake_up() -> None:
    for limits in (ROOMY, DELAYED):
        assert queue_of(limits=limits).take(0.0) == Taken()


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


def test_a_request_of_more_bytes_than_the_queue_ever_holds_is_too_large_not_overload() -> None:
    entry = waiting(10)
    size_bytes = entry.request.size_bytes
    with pytest.raises(ServingError) as refusal:
        queue_of(entry, limits=Limits(100, size_bytes - 1, 10))
    assert refusal.value.code is Code.PAYLOAD_TOO_LARGE
    for fact in (f"{size_bytes} bytes", f"limit of {size_bytes - 1} bytes", "max_queue_bytes"):
        assert fact in refusal.value.detail


def test_a_refused_request_leaves_no_trace() -> None:
    queue = queue_of(waiting(100))
    refused = waiting(1)
    with pytest.raises(ServingError):
        queue.push(refused)
    assert (len(queue), queue.rows, heap_entries(queue)) == (1, 100, 1)
    assert not queue.remove(refused)


def test_what_leaves_the_queue_gives_its_rows_and_bytes_back() -> None:
    removed, taken, drained = waiting(10), waiting(10), waiting(10)
    expired = waiting(10, timeout_s=1.0)
    queue = queue_of(removed, limits=Limits(10, removed.request.size_bytes, 10))
    assert queue.remove(removed)
    queue.push(taken)
    assert who(queue.take(0.0).batch) == [taken]
    queue.push(expired)
    assert who(queue.take(2.0).expired) == [expired]
    queue.push(drained)
    assert who(queue.drain()) == [drained]
    assert queue.up_to(0) == Load(0, 0, 0)
    queue.push(waiting(10))


def test_a_piece_gives_its_rows_back_at_once_and_the_bytes_go_with_the_last() -> None:
    large = of_ids(*[1] * 15, split=True)
    queue = queue_of(large, limits=Limits(15, large.request.size_bytes, 10))
    queue.take(0.0)
    assert queue.rows == 5
    with pytest.raises(ServingError, match="max_queue_bytes"):
        queue.push(waiting(5))
    queue.take(0.0)
    queue.push(waiting(5))


def test_a_request_that_was_removed_is_never_taken_and_removing_it_again_says_so() -> None:
    first, second, third = waiting(1), waiting(1), waiting(1)
    queue = queue_of(first, second, third)
    assert queue.remove(second)
    assert not queue.remove(second)
    assert who(queue.take(0.0).batch) == [first, third]
    assert not queue.remove(first)


def test_removing_a_request_that_has_begun_ends_it_and_says_that_it_had_begun() -> None:
    large = of_ids(*[1] * 15, split=True)
    queue = queue_of(large)
    queue.take(0.0)
    assert not queue.remove(large)
    assert (len(queue), queue.rows, queue.take(0.0)) == (0, 0, Taken())


def test_two_waits_for_one_request_are_two_entries() -> None:
    request = waiting(1).request
    queue = queue_of(Waiting(request, 0.0), Waiting(request, 0.0))
    assert len(queue) == 2
    assert len(queue.take(0.0).batch) == 2


@pytest.mark.parametrize("staying", [0, 500])
def test_heap_entries_never_outgrow_what_waits_however_many_are_removed(staying: int) -> None:
    queue = RequestQueue(Limits(max_queue_rows=10_000, max_queue_bytes=1, max_batch_rows=1000))
    stay = [Waiting(InferRequest("", 1, {}), float(number)) for number in range(staying)]
    for entry in stay:
        queue.push(entry)
    for number in range(1000):
        gone = Waiting(InferRequest("", 1, {}, priority=3), float(number))
        queue.push(gone)
        assert queue.remove(gone)
        assert heap_entries(queue) <= 2 * len(queue) + 64
    assert who(queue.take(1000.0).batch) == stay


def test_draining_returns_everything_in_order_of_arrival_and_only_what_is_left_of_it() -> None:
    large = of_ids(*[1] * 12, split=True)
    urgent, usual = waiting(3, timeout_s=0.1), waiting(3)
    queue = queue_of(large)
    queue.take(0.0)
    queue.push(usual)
    queue.push(urgent)
    drained = queue.drain()
    assert who(drained) == [large, usual, urgent]
    assert spans(drained) == [(10, 12), (0, 3), (0, 3)]
    assert (len(queue), queue.drain(), queue.take(0.0)) == (0, (), Taken())


def test_max_delay_counts_from_the_arrival_of_the_oldest() -> None:
    first, second = waiting(1, arrived_s=10.0), waiting(1, arrived_s=11.5)
    queue = queue_of(first, second, limits=DELAYED)
    assert queue.take(11.9) == Taken(wake_s=12.0)
    assert who(queue.take(12.0).batch) == [first, second]


@pytest.mark.parametrize(
    "limits",
    [DELAYED, replace(DELAYED, max_batch_ids=6), replace(DELAYED, max_batch_requests=2)],
    ids=["rows", "ids", "requests"],
)
def test_max_delay_does_not_hold_a_batch_that_is_full(limits: Limits) -> None:
    rows = 5 if limits == DELAYED else 1
    entries = [of_ids(3, *[0] * (rows - 1), arrived_s=10.0) for _ in range(2)]
    queue = queue_of(entries[0], limits=limits)
    fullness = [queue.full]
    assert queue.take(10.0).wake_s == 12.0
    queue.push(entries[1])
    assert [*fullness, queue.full] == [False, True]
    assert who(queue.take(10.0).batch) == entries


def test_the_delay_starts_anew_when_the_oldest_leaves() -> None:
    first, second = waiting(1, arrived_s=10.0), waiting(1, arrived_s=11.5)
    queue = queue_of(first, second, limits=DELAYED)
    queue.remove(first)
    assert queue.take(12.0).wake_s == 13.5


def test_max_delay_holds_nothing_that_is_wanted_at_once() -> None:
    entry = waiting(1)
    assert who(queue_of(entry, limits=DELAYED).take(0.0, at_once=True).batch) == [entry]


def test_max_delay_counts_from_the_arrival_of_a_request_that_has_begun() -> None:
    large = of_ids(*[1] * 12, split=True)
    queue = queue_of(large, limits=DELAYED)
    assert spans(queue.take(1.0).batch) == [(0, 10)]
    assert queue.take(1.0).wake_s == 2.0
    assert spans(queue.take(2.0).batch) == [(10, 12)]


def test_max_delay_leaves_what_has_expired_meanwhile_to_the_next_look() -> None:
    expired, patient = waiting(1, timeout_s=1.0), waiting(1)
    queue = queue_of(expired, patient, limits=DELAYED)
    assert queue.take(0.25) == Taken(wake_s=0.5)  # no longer than half a timeout
    taken = queue.take(2.0)
    assert (who(taken.expired), who(taken.batch)) == ([expired], [patient])
