"""The tool that tells lanes from processes."""

import time
from collections.abc import Callable

import pytest

from loadtest.lab.lanes import Slice, line_of, run_slice
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
    line = line_of("a", slices)
    assert line["two lanes / one"] == pytest.approx(1.9)
    assert line["two processes / one"] == pytest.approx(2.0)
    assert line["lanes / processes"] == pytest.approx(0.95)
    assert (line["cpu us, one"], line["cpu us, lanes"]) == (9.0, 10.0)
