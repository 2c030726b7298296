"""Lanes pass one at a time each, and can all be held without anybody being left behind."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from backends.dlrm.turnstile import Turnstile


def passed(passing: Turnstile[str], work: Callable[[str], object]) -> object:
    """Return what ``work`` makes with a worker."""
    home, worker = passing.take()
    try:
        return work(worker)
    finally:
        home.put(worker)


def inside(passing: Turnstile[str], pool: ThreadPoolExecutor) -> Callable[[], None]:
    """Let a thread take a lane; return what lets it go on."""
    entered, leave = threading.Event(), threading.Event()

    def work(worker: str) -> None:
        entered.set()
        assert leave.wait(30)

    future = pool.submit(passed, passing, work)
    assert entered.wait(30)

    def release() -> None:
        leave.set()
        future.result(30)

    return release


def test_each_worker_serves_one_caller_at_a_time() -> None:
    passing = Turnstile(["a", "b"])
    with ThreadPoolExecutor() as pool:
        release = inside(passing, pool)
        other = passed(passing, str)
        release()
        assert {passed(passing, str), passed(passing, str)} == {"a", "b"}
        assert other in {"a", "b"}


def test_it_is_idle_while_every_worker_is_home() -> None:
    passing = Turnstile(["a", "b"])
    assert passing.idle()
    with ThreadPoolExecutor() as pool:
        release = inside(passing, pool)
        assert not passing.idle()
        release()
    assert passing.idle()
    with passing.held():
        pass
    assert passing.idle()


def test_the_block_begins_once_everybody_is_out_and_nobody_passes_meanwhile() -> None:
    passing = Turnstile(["a", "b"])
    told: list[str] = []
    with ThreadPoolExecutor() as pool:
        release = inside(passing, pool)
        holding, done = threading.Event(), threading.Event()

        def went(worker: str) -> None:
            told.append("passed")

        def hold() -> None:
            with passing.held():
                told.append("held")
                holding.set()
                assert done.wait(30)
                told.append("over")

        held = pool.submit(hold)
        assert told == []
        release()
        assert holding.wait(30)
        late = [pool.submit(passed, passing, went) for _ in range(3)]
        done.set()
        held.result(30)
        for future in late:
            future.result(30)
    assert told == ["held", "over", "passed", "passed", "passed"]


def test_a_hold_that_waits_too_long_gives_up_and_leaves_everything_as_it_was() -> None:
    passing = Turnstile(["a", "b"])
    with ThreadPoolExecutor() as pool:
        release = inside(passing, pool)
        with pytest.raises(TimeoutError, match="computing for 0 s"), passing.held(0.0):
            raise AssertionError("nobody may get here")
        assert passed(passing, str) in {"a", "b"}
        release()
        assert {passed(passing, str), passed(passing, str)} == {"a", "b"}
        with passing.held(10.0):
            pass
        assert passed(passing, str) in {"a", "b"}


def test_who_waits_for_a_lane_when_they_move_is_not_left_behind() -> None:
    passing = Turnstile(["a"])
    for _ in range(50):
        with ThreadPoolExecutor(5) as pool:
            release = inside(passing, pool)
            waiting = [pool.submit(passed, passing, str) for _ in range(3)]
            let_go = threading.Timer(0, release)
            let_go.start()
            with passing.held():
                pass
            assert [future.result(30) for future in waiting] == ["a"] * 3
            let_go.join(30)


def test_a_fault_within_gives_the_lane_back() -> None:
    passing = Turnstile(["a"])
    with pytest.raises(ZeroDivisionError):
        passed(passing, lambda worker: 1 // 0)
    with pytest.raises(ZeroDivisionError), passing.held():
        _ = 1 // 0
    assert passed(passing, str) == "a"
