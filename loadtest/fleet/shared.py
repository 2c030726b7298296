"""A server with one processor for its event loop and its one lane, as one that is pinned has it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from loadtest.fleet.batching import Job
from loadtest.fleet.box import Box
from loadtest.fleet.core import Core, Turn
from loadtest.fleet.draws import Draws
from loadtest.fleet.server import Client, Desk, Server
from loadtest.fleet.timeline import Timeline
from scheduler.waiting import CROWDED

# What the loop has to do: its seconds, and what is to be called at the end of the turn.
Step: TypeAlias = tuple[float, Callable[[], None]]


class SharedServer(Desk):
    """Simulates a ``box`` with one processor.

    The loop works in turns: whatever has come by their beginning, answers leaving at their end.
    Requests that come in one turn share a batch.
    """

    def __init__(
        self, timeline: Timeline, box: Box, client: Client, draws: Draws, slower: float = 1.0
    ) -> None:
        super().__init__(timeline, box, client, draws, slower)
        self._core = Core(timeline, box.yield_s, box.idle_s, self._turn, self._computed)
        self._free = True
        self._steps: list[Step] = []
        self._batch: list[Job] = []

    def accept(self, job: Job) -> None:
        """Take ``job`` off the wire."""
        if not self.up:
            self._client.failed(job)
            return
        self._under_way[job] = None
        self._ask_loop(self._box.read_s, partial(self._enqueue, job))

    def hold(self, seconds: float) -> None:
        """Keep the lane for something else, such as exchanging rows, as soon as it is free."""
        if self.up:
            self._holds.append(seconds)
            self._dispatch()

    def die(self) -> None:
        """Fail everything at once, and what comes later too, until ``revive``."""
        self._core.clear()
        self._steps.clear()
        self._fail_all()

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
