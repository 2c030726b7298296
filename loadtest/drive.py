"""Drive connections: send when it is time, note when answers come. One thread, no event loop.

asyncio's timers, and uvloop's, are a millisecond coarse, which is more than many a latency here.
"""

import math
import time
from collections import deque
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Protocol

from loadtest.pool import NO_SERVER, Pool, Reopen
from loadtest.record import Outcome, Recorder
from loadtest.schedule import Times
from loadtest.wires.base import Answer, Wire

# Sends between two looks at what has arrived.
_SENDS_AT_ONCE = 16
_LONGEST_WAIT_S = 0.25
UNANSWERED = "UNANSWERED"

Check = Callable[[int, bytes], bool]


class Bodies(Protocol):
    """Requests by number."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __getitem__(self, number: int, /) -> bytes:
        """Return one."""


# What others may look at while a run lasts: counts, at these places.
Seen = MutableSequence[int]
SENT, ANSWERED, FAILED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Plan:
    """One process's part of a run: requests number ``first``, ``first + stride``, ...

    With ``due_s`` (seconds from the start, warm-up included) an open loop; else a closed one with
    ``in_flight`` requests. ``check`` says whether the answer to body ``number`` is right. What has
    no answer ``drain_s`` after the last send counts as failed. Every ``cancel_every``-th request is
    given up ``cancel_after_s`` after its send; 0: none. ``signal_s`` after the warm-up the server
    is told to stop: what was sent later is in ``ends`` only.
    """

    bodies: Bodies
    warmup_s: float
    measure_s: float
    due_s: Times | None = None
    in_flight: int = 0
    first: int = 0
    stride: int = 1
    check: Check | None = None
    drain_s: float = 10.0
    cancel_every: int = 0
    cancel_after_s: float = 0.0
    signal_s: float = math.inf


def run(
    wires: Sequence[Wire],
    plan: Plan,
    start_s: float,
    seen: Seen | None = None,
    reopen: Reopen | None = None,
) -> Outcome:
    """Carry out ``plan`` from ``start_s`` (perf_counter) on.

    Raises NoServerError, with ``reopen`` never: it opens another connection when one is gone.
    """
    pool = Pool(wires, reopen)
    return _Loop(pool, plan, start_s, [0, 0, 0] if seen is None else seen).run()


class _Loop:
    def __init__(self, pool: Pool, plan: Plan, start_s: float, seen: Seen) -> None:
        self._pool = pool
        self._plan = plan
        self._seen = seen
        self._start_s = start_s
        self._begin_s = start_s + plan.warmup_s
        self._end_s = self._begin_s + plan.measure_s
        self._due_s = [] if plan.due_s is None else plan.due_s.tolist()
        self._open = plan.due_s is not None
        self._next = 0
        # Requests whose time has come, until a connection is free; then, until they are answered.
        self._waiting: deque[tuple[int, float]] = deque()
        self._asked: dict[int, tuple[float, float]] = {}
        self._leaving: deque[tuple[float, int]] = deque()
        self._signal_s = self._begin_s + plan.signal_s
        self._nobody = False
        # When the last answer that counts came, from the end of the warm-up.
        self._counted_s = 0.0
        self._recorder = Recorder(plan.measure_s)

    def run(self) -> Outcome:
        time.sleep(max(0.0, self._start_s - time.perf_counter()))
        cpu_s = time.process_time()
        try:
            while not self._over():
                self._come_due()
                self._cancel_due()
                self._ask_waiting()
                self._pool.flush()
                for answer in self._pool.receive(self._wait_s()):
                    self._take(answer)
        finally:
            self._pool.close()
        now_s = time.perf_counter()
        elapsed_s = now_s - self._begin_s
        if now_s > self._signal_s:  # nothing of what was sent later is counted
            elapsed_s = max(self._plan.signal_s, self._counted_s)
        left_s = [*self._asked.values(), *((s, now_s) for _, s in self._waiting)]
        for intended_s, asked_s in left_s:
            if self._stopped(asked_s, now_s, UNANSWERED):
                continue
            if self._counts(intended_s, math.inf):
                self._recorder.unanswered += 1
                self._recorder.failed(UNANSWERED, "no answer by the end of the run")
        return self._recorder.outcome(elapsed_s, time.process_time() - cpu_s)

    def _over(self) -> bool:
        now_s = time.perf_counter()
        sending = self._next < len(self._due_s) if self._open else self._asking(now_s)
        if sending:
            return False
        return not (self._asked or self._waiting) or now_s > self._end_s + self._plan.drain_s

    def _asking(self, now_s: float) -> bool:
        # Where nobody listens any more a closed loop would only be refused, as fast as it can.
        return now_s < self._end_s and not self._nobody

    def _come_due(self) -> None:
        now_s = time.perf_counter()
        if not self._open:
            while self._asking(now_s) and self._under_way() < self._plan.in_flight:
                self._waiting.append((self._next, now_s))
                self._next += 1
            return
        stop = min(self._next + _SENDS_AT_ONCE, len(self._due_s))
        while self._next < stop and self._start_s + self._due_s[self._next] <= now_s:
            intended_s = self._start_s + self._due_s[self._next]
            now_s = time.perf_counter()
            if intended_s >= self._begin_s:
                self._recorder.sent(now_s - self._begin_s, now_s - intended_s)
            self._waiting.append((self._next, intended_s))
            self._next += 1

    def _under_way(self) -> int:
        return len(self._asked) + len(self._waiting)

    def _ask_waiting(self) -> None:
        while self._waiting:
            ticket, intended_s = self._waiting[0]
            asked_s = time.perf_counter()
            if not self._pool.ask(ticket, self._plan.bodies[self._number(ticket)]):
                return
            self._waiting.popleft()
            self._asked[ticket] = (intended_s, asked_s)
            self._seen[SENT] += 1
            if self._plan.cancel_every and ticket % self._plan.cancel_every == 0:
                leave_s = time.perf_counter() + self._plan.cancel_after_s
                self._leaving.append((leave_s, ticket))

    def _cancel_due(self) -> None:
        while self._leaving and self._leaving[0][0] <= time.perf_counter():
            _, ticket = self._leaving.popleft()
            if ticket not in self._asked:
                continue
            intended_s, _ = self._asked.pop(ticket)
            self._recorder.cancelled += self._counts(intended_s, time.perf_counter())
            self._pool.cancel(ticket)

    def _number(self, ticket: int) -> int:
        return (self._plan.first + ticket * self._plan.stride) % len(self._plan.bodies)

    def _wait_s(self) -> float:
        now_s = time.perf_counter()
        next_s = now_s + _LONGEST_WAIT_S
        if self._next < len(self._due_s):
            next_s = min(next_s, self._start_s + self._due_s[self._next])
        if self._leaving:
            next_s = min(next_s, self._leaving[0][0])
        return max(0.0, min(next_s, self._pool.due_s) - now_s)

    def _take(self, answer: Answer) -> None:
        now_s = time.perf_counter()
        if answer.ticket not in self._asked:  # given up, then lost
            return
        intended_s, asked_s = self._asked.pop(answer.ticket)
        if answer.status == NO_SERVER:
            self._nobody = True
        if self._stopped(asked_s, now_s, answer.status):
            return
        counts = self._counts(intended_s, now_s)
        if answer.status:
            self._seen[FAILED] += 1
            if counts:
                self._recorder.failed(answer.status, answer.detail)
            return
        self._seen[ANSWERED] += 1
        if self._plan.check and not self._plan.check(self._number(answer.ticket), answer.body):
            self._recorder.mismatches += 1
        if counts:
            self._counted_s = now_s - self._begin_s
            self._recorder.answered(self._counted_s, now_s - intended_s, now_s - asked_s)

    def _stopped(self, asked_s: float, done_s: float, status: str) -> bool:
        """Note what came after the signal; say whether that is all there is to note."""
        if done_s < self._signal_s:
            return False
        later = asked_s >= self._signal_s
        self._recorder.ends[("later" if later else "in_flight", status or "ok")] += 1
        return later

    def _counts(self, intended_s: float, done_s: float) -> bool:
        # Closed loop: what completes after the warm-up. Open: what was to be sent after it.
        return (intended_s if self._open else done_s) >= self._begin_s
