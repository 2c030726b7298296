"""A server with one processor for its event loop and its one lane, as one that is pinned has it."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from loadtest.fleet.batching import Job, Line
from loadtest.fleet.box import Box
from loadtest.fleet.core import Core, Turn
from loadtest.fleet.draws import Draws
from loadtest.fleet.server import Client, Server
from loadtest.fleet.timeline import Timeline
from scheduler.waiting import CROWDED

# What the loop has to do: its seconds, and what is to be called at the end of the turn.
Step: TypeAlias = tuple[float, Callable[[], None]]


class SharedServer:
    """Simulates a ``box``; ``slower`` multiplies what its batches take.

    The loop works in turns: whatever has come by their beginning, answers leaving at their end.
    Requests that come in one turn share a batch.
    """

    def __init__(
        self, timeline: Timeline, box: Box, client: Client, draws: Draws, slower: float = 1.0
    ) -> None:
        self._timeline = timeline
        self._box = box
        self._client = client
        self._draws = draws
        self._slower = slower
        self._line = Line(box.max_batch_rows, box.max_queue_rows)
        self._core = Core(timeline, box.yield_s, box.idle_s, self._turn, self._computed)
        self._free = True
        self._steps: list[Step] = []
        self._batch: list[Job] = []
        self._under_way: dict[Job, None] = {}
        self._holds: deque[float] = deque()
        self.up = True
        self.busy_s = self.loop_s = 0.0
        self.batches = self.batched = 0

    def accept(self, job: Job) -> None:
        """Take ``job`` off the wire."""
        if not self.up:
            self._client.failed(job)
            return
        self._under_way[job] = None
        self._ask_loop(self._box.read_s, partial(self._enqueue, job))

    def forget(self, job: Job) -> bool:
        """Drop a job that its client gave up; return whether it waited, and so comes back no more.

        One that a lane has begun is computed all the same.
        """
        waited = job.queued
        self._line.forget(job)
        if waited:
            del self._under_way[job]
        return waited

    def hold(self, seconds: float) -> None:
        """Keep the lane for something else, such as exchanging rows, as soon as it is free."""
        if self.up:
            self._holds.append(seconds)
            self._dispatch()

    def die(self) -> None:
        """Fail everything at once, and what comes later too, until ``revive``."""
        self.up = False
        self._core.clear()
        self._line.drain()
        self._holds.clear()
        self._steps.clear()
        lost, self._under_way = self._under_way, {}
        for job in lost:
            self._client.failed(job)

    def revive(self) -> None:
        """Serve again, empty."""
        self.up = self._free = True

    def _ask_loop(self, seconds: float, then: Callable[[], None]) -> None:
        self._steps.append((seconds, then))
        self._core.wake()

    def _turn(self) -> Turn | None:
        if not self._steps:
            return None
        steps, self._steps = self._steps, []
        cost_s = self._box.turn_s + sum([seconds for seconds, _ in steps])
        cost_s *= self._box.pace.loop_at(self._timeline.now_s)
        self.loop_s += cost_s
        return cost_s, partial(self._turned, steps)

    def _turned(self, steps: Sequence[Step]) -> None:
        for _, then in steps:
            then()
        self._dispatch()

    def _enqueue(self, job: Job) -> None:
        if job.gone or not self._line.push(job):
            del self._under_way[job]
            self._client.refused(job)

    def _dispatch(self) -> None:
        if not self._free:
            return
        if self._holds:
            self._free = False
            self._batch = []
            self._core.compute(self._holds.popleft())
        elif self._line.rows:
            self._free = False
            self._begin()

    def _begin(self) -> None:
        box = self._box
        shares = box.service.of(self._line.rows) / box.enough_s
        self._batch = batch = self._line.take(max(1.0, shares if shares < CROWDED else 0.0))
        work_s = self._box.service.of(sum([job.rows for job in batch])) * self._draws.next()
        work_s *= self._slower * self._box.pace.lane_at(self._timeline.now_s)
        self.busy_s += work_s
        self.batches += 1
        self.batched += len(batch)
        self._core.compute(work_s)

    def _computed(self) -> None:
        batch, self._batch = self._batch, []
        # A full batch is gathered ahead, and goes on without a word from the loop.
        ahead = bool(batch) and self._line.full and not self._holds
        if ahead:
            self._begin()
        self._ask_loop(0.0, partial(self._conclude, batch, freed=not ahead))

    def _conclude(self, batch: list[Job], *, freed: bool) -> None:
        self._free = self._free or freed
        if batch:
            self._ask_loop(self._box.write_s * len(batch), partial(self._answer, batch))

    def _answer(self, batch: list[Job]) -> None:
        for job in batch:
            del self._under_way[job]
            self._client.answered(job, self._timeline.now_s)


AnyServer: TypeAlias = Server | SharedServer


def server_of(
    timeline: Timeline, box: Box, client: Client, draws: Draws, slower: float = 1.0
) -> AnyServer:
    """Return a server that simulates ``box``."""
    kind = SharedServer if box.shared else Server
    return kind(timeline, box, client, draws, slower)
