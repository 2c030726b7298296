"""What two lanes of one process compute by what one does, and what the machine gave two threads.

A control that no model has a part in hashes on as many threads right beside each plan: what it
stays below 2 by is the machine's, and only the rest a plan's own. The processor time of a forward
is hardly touched by other programs: where two lanes need more of it than one, they are in each
other's way.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.candidates import Candidate, Hashing, Prepares
from loadtest.lab.stats import median
from scheduler.types import Batch

CONTROL = "control: SHA-256"
_SLICE_S = 0.15


@dataclass(frozen=True, slots=True)
class Slice:
    """Forwards a second, all together, and the processor time of one."""

    rate: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One lane and two of a plan, and what the control got of two threads by one meanwhile."""

    one: Slice
    two: Slice
    control: float

    @property
    def gain(self) -> float:
        """Return what two lanes compute by what one does."""
        return self.two.rate / self.one.rate


def run_slice(
    backend: Prepares, batches: Sequence[Batch], threads: int, begin_s: float, seconds: float
) -> tuple[int, float]:
    """Compute on so many threads from ``begin_s`` on; return forwards and CPU seconds."""
    done: list[tuple[int, float]] = []

    def work() -> None:
        time.sleep(max(0.0, begin_s - time.perf_counter()))
        count, begin_cpu_s = 0, time.thread_time()
        while not count or time.perf_counter() < begin_s + seconds:
            backend.prepare(batches[count % len(batches)])()
            count += 1
        done.append((count, time.thread_time() - begin_cpu_s))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(count for count, _ in done), sum(cpu_s for _, cpu_s in done)


def turns(
    candidates: Sequence[Candidate], batches: Sequence[Batch], rounds: int
) -> dict[str, list[Turn]]:
    """Return one turn of each candidate a round, by its name."""
    found: dict[str, list[Turn]] = {one.name: [] for one in candidates}
    for _ in range(rounds):
        for one in candidates:
            found[one.name].append(_turn(one.backend, batches))
    return found


def line_of(name: str, found: Sequence[Turn]) -> dict[str, float | str]:
    """Return what is told of one candidate: medians over its turns."""
    cpu = [turn.two.cpu_us / turn.one.cpu_us for turn in found]
    return {
        "plan": name,
        "two lanes / one": median([turn.gain for turn in found]),
        f"{CONTROL} beside it": median([turn.control for turn in found]),
        "by the control": median([turn.gain / turn.control for turn in found]),
        "cpu of a forward, two / one": median(cpu),
    }


def _turn(backend: Prepares, batches: Sequence[Batch]) -> Turn:
    control, taken = Hashing(), {}
    for threads in (1, 2):
        taken[threads] = _slice(control, batches, threads), _slice(backend, batches, threads)
    (control_one, one), (control_two, two) = taken[1], taken[2]
    return Turn(one, two, control_two.rate / control_one.rate)


def _slice(backend: Prepares, batches: Sequence[Batch], threads: int) -> Slice:
    count, cpu_s = run_slice(backend, batches, threads, time.perf_counter(), _SLICE_S)
    return Slice(count / _SLICE_S, 1e6 * cpu_s / count)
