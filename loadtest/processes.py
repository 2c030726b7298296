"""One run over several generator processes, which share a schedule and are added up."""

import contextlib
import gc
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import c_int64
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

from loadtest import drive
from loadtest.closed import NoServerError
from loadtest.encodings import Encoding
from loadtest.record import Outcome, total
from loadtest.requests import Bodies, Golden
from loadtest.schedule import Times
from loadtest.wires.base import Target
from loadtest.wires.connect import SCHEMES, connected

_START_DELAY_S = 0.05
_LOOK_S = 0.25
Look = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class Job:
    """A run, or one process's part of it; ``folder`` holds the requests.

    With ``due_s`` an open loop, else a closed one with ``in_flight`` requests. With a
    ``tolerance`` every answer is compared with its golden scores. ``stride`` is how many processes
    share it, ``connections`` among them. ``stop_after_s`` after the warm-up ``stop_pid`` gets a
    SIGTERM.
    """

    scheme: str
    target: Target
    folder: Path
    encoding: Encoding
    connections: int
    warmup_s: float
    measure_s: float
    due_s: Times | None = None
    in_flight: int = 0
    tolerance: float = math.inf
    cancel_every: int = 0
    cancel_after_s: float = 0.0
    stop_pid: int = 0
    stop_after_s: float = math.inf
    first: int = 0
    stride: int = 1


def run(job: Job, look: Look | None = None) -> Outcome:
    """Carry out ``job`` in ``job.stride`` processes; ``look`` gets sent, answered, failed so far.

    Raises NoServerError.
    """
    context = multiprocessing.get_context("spawn")
    jobs = [_part(job, number) for number in range(job.stride)]
    seen = [RawArray(c_int64, 3) for _ in jobs]
    with contextlib.ExitStack() as stack:
        pipes: list[Connection] = []
        for part, counts in zip(jobs, seen, strict=True):
            mine, its = context.Pipe()
            process = context.Process(target=work, args=(part, its, counts), daemon=True)
            process.start()
            its.close()
            stack.callback(_end, process)
            pipes.append(stack.enter_context(mine))
        for pipe in pipes:
            _received(pipe)
        start_s = time.perf_counter() + _START_DELAY_S
        for pipe in pipes:
            pipe.send(start_s)
        stack.enter_context(_stopping(job, start_s))
        waiting = list(pipes)
        parts = []
        while waiting:
            for ready in wait(waiting, _LOOK_S):
                parts.append(_received(ready))
                waiting.remove(ready)  # type: ignore[arg-type] # what wait returns it was given
            if look is not None:
                look(*(sum(counts[place] for counts in seen) for place in range(3)))
    return total(parts)


def work(job: Job, pipe: Connection, seen: Any) -> None:
    """Be one process: connect, say so, begin when told, send the outcome or why there is none."""
    try:
        bodies = Bodies(job.folder)
        golden = None
        if math.isfinite(job.tolerance):
            golden = Golden(job.folder, job.encoding, job.tolerance)
        plan = drive.Plan(
            bodies, job.warmup_s, job.measure_s, job.due_s, job.in_flight, job.first, job.stride,
            golden.check if golden else None,
            cancel_every=job.cancel_every, cancel_after_s=job.cancel_after_s,
            signal_s=job.stop_after_s,
        )  # fmt: skip
        reopen = partial(SCHEMES[job.scheme], job.target) if job.stop_pid else None
        with connected(job.scheme, job.target, job.connections) as wires, _no_collection():
            pipe.send(None)
            pipe.send(drive.run(wires, plan, pipe.recv(), seen, reopen))
    except NoServerError as error:
        pipe.send(error)
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        return


@contextlib.contextmanager
def _stopping(job: Job, start_s: float) -> Iterator[None]:
    """Send the SIGTERM when its time has come."""
    if not job.stop_pid:
        yield
        return
    wait_s = start_s + job.warmup_s + job.stop_after_s - time.perf_counter()

    def stop() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.stop_pid, signal.SIGTERM)

    timer = threading.Timer(wait_s, stop)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _part(job: Job, number: int) -> Job:
    def share(count: int) -> int:
        return len(range(number, count, job.stride))

    return replace(
        job,
        connections=max(1, share(job.connections)),
        due_s=None if job.due_s is None else job.due_s[number :: job.stride],
        in_flight=share(job.in_flight),
        first=number,
    )


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    # A collection would be a lag; a run leaves no cycles.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _received(pipe: Any) -> Any:
    try:
        got = pipe.recv()
    except (EOFError, ConnectionResetError) as error:
        raise NoServerError("a generator process ended without an outcome") from error
    if isinstance(got, Exception):
        raise got
    return got


def _end(process: Any) -> None:
    process.join(timeout=1.0)
    if process.is_alive():
        process.terminate()
        process.join()
