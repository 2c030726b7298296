"""The tools that tell lanes from processes, and from what the machine gives two threads."""

import time
from collections.abc import Callable

import pytest

from loadtest import scaling
from loadtest.candidates import Candidate
from loadtest.lab.lanes import line_of
from loadtest.scaling import Slice, Turn, run_slice
from scheduler.types import Batch


class Counting:
    """Counts forwards."""

    def __init__(self) -> None:
        self.done = 0

    def prepare(self, batch: Batch) -> Callable[[], None]:
        """Return what counts one."""
        return self._count

    def _count(self) -> None:
        self.done += 1


def test_every_forward_of_every_thread_counts() -> None:
    backend, batches = Counting(), [Batch(()), Batch(())]
    count, cpu_s = run_slice(backend, batches, 2, time.perf_counter(), 0.01)
    assert count >= backend.done > 0  # += is no atomic step
    assert cpu_s > 0


def test_ratios_are_of_the_best_slices_and_times_the_least() -> None:
    slices = {
        "one": [Slice(100, 9.0), Slice(50, 10.0)],
        "lanes": [Slice(120, 11.0), Slice(190, 10.0)],
        "processes": [Slice(200, 9.5), Slice(90, 12.0)],
    }
    control = {"one": [Slice(10, 1.0)], "lanes": [Slice(19, 1.0), Slice(12, 1.0)]}
    line = line_of("a", slices, control)
    assert line["two lanes / one"] == pytest.approx(1.9)
    assert line["the same by the control's"] == pytest.approx(1.0)
    assert line["two processes / one"] == pytest.approx(2.0)
    assert line["lanes / processes"] == pytest.approx(0.95)
    assert (line["cpu us, one"], line["cpu us, lanes"]) == (9.0, 10.0)


def test_a_plan_stands_beside_what_two_plain_threads_got_in_the_same_turn() -> None:
    one = Slice(100, 10.0)
    turns = [Turn(one, Slice(200, 10.5), 2.0), Turn(one, Slice(90, 10.0), 1.0)]
    line = scaling.line_of("a", [*turns, turns[0]])
    assert line["two lanes / one"] == pytest.approx(2.0)
    assert line["control: SHA-256 beside it"] == pytest.approx(2.0)
    assert line["by the control"] == pytest.approx(1.0)
    assert line["cpu of a forward, two / one"] == pytest.approx(1.05)


def test_every_candidate_has_a_turn_a_round() -> None:
    backend = Counting()
    found = scaling.turns([Candidate("a", backend), Candidate("b", backend)], [Batch(())], 1)
    assert [len(found[name]) for name in ("a", "b")] == [1, 1]
    assert all(turn.gain > 0 and turn.control > 0 for turn in found["a"] + found["b"])
