"""Which actor takes the next batch: without a cluster."""

import threading
import time

import pytest

from backends.ray_pool.alive import Alive
from backends.ray_pool.members import Member, Members
from scheduler.errors import Code, ServingError


def members(*nodes: str, ahead: int = 0) -> tuple[Members, list[Member]]:
    """Return members that are up, one on each of ``nodes``, numbered from 0."""
    made = Members(ahead)
    each = [Member(number, handle=None) for number in range(len(nodes))]
    for member, node in zip(each, nodes, strict=True):
        made.add(member)
        made.up(member, Alive(pid=100 + member.number, node=node, lanes=1))
    return made, each


def take(made: Members, *tried: Member) -> Member:
    return made.take(time.monotonic() + 20, tried)


def test_the_least_loaded_takes_the_next_batch() -> None:
    made, (first, second) = members("a", "b")
    assert [take(made) for _ in range(4)] == [first, second, first, second]
    made.give_back(second)
    assert take(made) is second


def test_load_is_by_lanes() -> None:
    made, (small, large) = members("a", "b")
    made.up(large, Alive(pid=1, node="b", lanes=3))
    assert [take(made) for _ in range(5)] == [small, large, large, large, small]


def test_a_batch_that_was_lost_goes_to_another_machine_and_only_then_to_a_busy_one() -> None:
    made, (lost, mate, far) = members("a", "a", "b")
    for _ in range(9):
        take(made, lost, mate)
    assert far.in_flight == 9
    assert take(made, lost) is far


def test_who_shares_a_machine_with_a_lost_one_is_lent_to_nobody_until_found_alive() -> None:
    made, (lost, mate, far) = members("a", "a", "b", ahead=1)
    assert made.lanes_now == 6
    made.down(lost)
    assert [take(made) for _ in range(3)] == [far] * 3
    assert made.lanes_now == 2
    made.up(mate, Alive(pid=101, node="a", lanes=1))
    assert take(made) is mate
    assert made.lanes_now == 4


def test_whoever_waits_gets_the_one_that_comes_up() -> None:
    made, (only,) = members("a")
    made.down(only)
    got: list[Member] = []
    waiting = threading.Thread(target=lambda: got.append(take(made)))
    waiting.start()
    made.up(only, Alive(pid=1, node="b", lanes=1))
    waiting.join()
    assert got == [only]


def test_where_one_has_waited_in_vain_nobody_waits_any_more_until_one_is_up() -> None:
    made, (only,) = members("a")
    made.down(only)
    for patience_s in (0.0, 1e9):
        with pytest.raises(ServingError, match="no replica is up") as caught:
            made.take(time.monotonic() + patience_s, ())
        assert caught.value.code is Code.UNAVAILABLE
    made.up(only, Alive(pid=1, node="a", lanes=1))
    assert take(made) is only


def test_the_most_loaded_stay_when_one_retires_and_it_is_gone_once_it_has_nothing_to_do() -> None:
    made, (busy, idle) = members("a", "b")
    assert take(made) is busy
    made.retire()
    assert made.retired() == [idle]
    made.remove(idle)
    assert made.all() == [busy]
    made.retire()
    assert made.retired() == []
    made.give_back(busy)
    assert made.retired() == [busy]


def test_the_most_batches_at_once_are_counted_anew_each_time_they_are_asked_for() -> None:
    made, _ = members("a", "b")
    lent = [take(made), take(made)]
    made.give_back(lent[0])
    assert made.most_busy() == 2
    assert made.most_busy() == 1


def test_while_they_are_held_none_is_lent_and_then_whoever_waited_gets_one() -> None:
    made, (only,) = members("a")
    got: list[Member] = []
    waiting = threading.Thread(target=lambda: got.append(take(made)))
    with made.held():
        waiting.start()
        with pytest.raises(ServingError):
            made.take(time.monotonic() + 0.01, ())
        assert not got
    waiting.join()
    assert got == [only]
