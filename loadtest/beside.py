"""What goes on beside a run: clients that read at a trickle, a look at the server's metrics."""

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import httpx
from prometheus_client.parser import text_string_to_metric_families

from loadtest.closed import NoServerError
from loadtest.processes import Job
from loadtest.requests import Bodies
from loadtest.wires.base import Wire
from loadtest.wires.connect import connected

# A slow client asks for as much as a full window of answers, and reads so often.
_ASKED_AT_ONCE, _EVERY_S = 32, 0.02
_TIMEOUT_S = 2.0
_COUNTERS = ("batch_rows", "batch_requests", "queue_duration_seconds", "compute_duration_seconds")


@dataclass(slots=True)
class Slow:
    """What became of the slow clients' requests, by status; ``waiting`` are not read yet."""

    ends: Counter[str]
    waiting: int = 0

    def figures(self) -> dict[str, int]:
        """Return them for printing."""
        return {**self.ends, "waiting": self.waiting}


class _Trickle:
    """One slow client: it asks again and again, and reads ``Target.read_bytes`` at a time."""

    def __init__(self, wire: Wire, bodies: Bodies, slow: Slow) -> None:
        self._wire = wire
        self._bodies = bodies
        self._slow = slow
        self._next = 0
        self._under_way = 0

    def step(self) -> bool:
        """Ask and read once; say whether the connection is still there."""
        try:
            while self._wire.free and self._under_way < _ASKED_AT_ONCE:
                self._wire.ask(self._next, self._bodies[self._next % len(self._bodies)])
                self._next += 1
                self._under_way += 1
            self._wire.flush()
            answers = self._wire.receive()
        except NoServerError:
            self._slow.ends["connections lost"] += 1
            return False
        self._under_way -= len(answers)
        self._slow.ends.update(answer.status or "ok" for answer in answers)
        return True

    @property
    def under_way(self) -> int:
        """Return how many requests have no complete answer."""
        return self._under_way


@contextlib.contextmanager
def slow_readers(job: Job, count: int, read_bytes: int) -> Iterator[Slow]:
    """Let ``count`` slow clients of ``job``'s server live until the end. Raises NoServerError."""
    slow = Slow(Counter())
    if not count:
        yield slow
        return
    bodies = Bodies(job.folder)
    target = replace(job.target, read_bytes=read_bytes)
    with connected(job.scheme, target, count) as wires:
        clients = [_Trickle(wire, bodies, slow) for wire in wires]

        def step() -> None:
            clients[:] = [client for client in clients if client.step()]

        with _repeated(step, _EVERY_S):
            yield slow
        slow.waiting = sum(client.under_way for client in clients)


@contextlib.contextmanager
def sampled(
    url: str, every_s: float, headers: Mapping[str, str] | None = None
) -> Iterator[list[dict[str, float]]]:
    """Yield a list that fills with what the server's metrics at ``url`` say of each interval.

    ``at_s`` from the start of the context; means in rows, requests and ms. Where they cannot be
    read an interval is missing.
    """
    samples: list[dict[str, float]] = []
    seen: deque[dict[str, float]] = deque(maxlen=2)
    begin_s = time.perf_counter()

    def look() -> None:
        with contextlib.suppress(httpx.HTTPError, ValueError):
            answer = httpx.get(url, timeout=_TIMEOUT_S, headers=headers)
            seen.append(totals(answer.raise_for_status().text))
            if len(seen) == 2:
                at_s = round(time.perf_counter() - begin_s, 3)
                samples.append({"at_s": at_s, **means(seen[0], seen[1])})

    if not url:
        yield samples
        return
    with _repeated(look, every_s):
        yield samples


def totals(text: str) -> dict[str, float]:
    """Return sums and counts over all models in ``text``, the metrics as Prometheus reads them."""
    wanted = {f"narsil_{name}_{part}": 0.0 for name in _COUNTERS for part in ("sum", "count")}
    wanted["narsil_queue_depth_rows"] = 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in wanted:
                wanted[sample.name] += sample.value
    return {name.removeprefix("narsil_"): value for name, value in wanted.items()}


def means(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return the means of what lies between two ``totals``, and the queue at its end."""

    def mean(name: str) -> float:
        count = after[f"{name}_count"] - before[f"{name}_count"]
        return (after[f"{name}_sum"] - before[f"{name}_sum"]) / count if count > 0 else 0.0

    return {
        "batch_rows": round(mean("batch_rows"), 2),
        "batch_requests": round(mean("batch_requests"), 2),
        "queue_ms": round(mean("queue_duration_seconds") * 1e3, 4),
        "compute_ms": round(mean("compute_duration_seconds") * 1e3, 4),
        "queued_rows": after["queue_depth_rows"],
    }


@contextlib.contextmanager
def _repeated(step: Callable[[], None], every_s: float) -> Iterator[None]:
    over = threading.Event()

    def run() -> None:
        step()
        while not over.wait(every_s):
            step()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
