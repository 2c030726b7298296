"""One server: requests pass its event loop, wait, share a lane's batch, and come back."""

from collections import deque
from typing import Protocol

from loadtest.fleet.batching import Job, Line
from loadtest.fleet.box import Box
from loadtest.fleet.draws import Draws
from loadtest.fleet.timeline import Timeline


class Client(Protocol):
    """Whoever sent the jobs; each comes back exactly once, by one of these, or by ``forget``."""

    def answered(self, job: Job, time_s: float) -> None:
        """Take the answer, which leaves the server at ``time_s``."""

    def refused(self, job: Job) -> None:
        """Take the refusal: the queue is full, or nobody wants it any more."""

    def failed(self, job: Job) -> None:
        """Learn that the server is dead."""


class Desk:
    """What each kind of server has of its jobs; ``slower`` multiplies what its batches take."""

    def __init__(
        self, timeline: Timeline, box: Box, client: Client, draws: Draws, slower: float = 1.0
    ) -> None:
        self._timeline = timeline
        self._box = box
        self._client = client
        self._draws = draws
        self._slower = slower
        self._line = Line(box.max_batch_rows, box.max_queue_rows)
        self._under_way: dict[Job, None] = {}  # in order, so that the same seed gives the same
        self._holds: deque[float] = deque()
        self.up = True
        self.busy_s = self.loop_s = 0.0
        self.batches = self.batched = 0

    def forget(self, job: Job) -> bool:
        """Drop a job that its client gave up; return whether it waited, and so comes back no more.

        One that a lane has begun is computed all the same.
        """
        waited = job.queued
        self._line.forget(job)
        if waited:
            del self._under_way[job]
        return waited

    def _fail_all(self) -> None:
        self.up = False
        self._line.drain()
        self._holds.clear()
        lost, self._under_way = self._under_way, {}
        for job in lost:
            self._client.failed(job)


class Server(Desk):
    """Simulates a ``box`` whose event loop and lanes have processors of their own."""

    def __init__(
        self, timeline: Timeline, box: Box, client: Client, draws: Draws, slower: float = 1.0
    ) -> None:
        super().__init__(timeline, box, client, draws, slower)
        self._free = box.lanes
        self._loop_free_s = 0.0
        self._life = 0  # what was begun in an earlier one comes to nothing

    def accept(self, job: Job) -> None:
        """Take ``job`` off the wire."""
        if not self.up:
            self._client.failed(job)
            return
        self._under_way[job] = None
        if self._box.read_s:
            self._timeline.at(self._on_loop(self._box.read_s), self._enqueue, job, self._life)
        else:
            self._enqueue(job, self._life)

    def hold(self, seconds: float) -> None:
        """Keep a lane for something else, such as exchanging rows, as soon as one is free."""
        if self.up:
            self._holds.append(seconds)
            self._begin_holds()

    def die(self) -> None:
        """Fail everything at once, and what comes later too, until ``revive``."""
        self._life += 1
        self._fail_all()

    def revive(self) -> None:
        """Serve again, empty."""
        self.up = True
        self._free = self._box.lanes
        self._loop_free_s = self._timeline.now_s

    def _on_loop(self, seconds: float) -> float:
        """Return when the loop will have spent ``seconds`` on what comes to it now."""
        self._loop_free_s = max(self._loop_free_s, self._timeline.now_s) + seconds
        self.loop_s += seconds
        return self._loop_free_s

    def _enqueue(self, job: Job, life: int) -> None:
        if life != self._life:
            return
        if not job.gone and self._line.push(job):
            self._dispatch()
        else:
            del self._under_way[job]
            self._client.refused(job)

    def _dispatch(self) -> None:
        while self._free and self._line.rows:
            batch = self._line.take(self._free)
            self._free -= 1
            self._begin(batch, self._box.hop_s)

    def _begin(self, batch: list[Job], hop_s: float) -> None:
        rows = sum([job.rows for job in batch])
        took_s = self._box.service.of(rows) * self._draws.next() * self._slower
        self.busy_s += took_s
        self.batches += 1
        self.batched += len(batch)
        self._timeline.at(self._timeline.now_s + hop_s + took_s, self._lane_done, batch, self._life)

    def _lane_done(self, batch: list[Job], life: int) -> None:
        if life != self._life:
            return
        # A full batch is gathered ahead, and goes on without a word from the loop.
        ahead = self._line.full and not self._holds
        if ahead:
            self._begin(self._line.take(1), 0.0)
        on_loop_s = max(self._timeline.now_s + self._box.hop_s, self._loop_free_s)
        if on_loop_s > self._timeline.now_s:
            self._timeline.at(on_loop_s, self._conclude, batch, not ahead, life)
        else:
            self._conclude(batch, not ahead, life)

    def _conclude(self, batch: list[Job], freed: bool, life: int) -> None:
        if life != self._life:
            return
        if freed:
            self._release(life)
        for job in batch:
            del self._under_way[job]
            self._client.answered(job, self._on_loop(self._box.write_s))

    def _release(self, life: int) -> None:
        if life == self._life:
            self._free += 1
            self._begin_holds()
            self._dispatch()

    def _begin_holds(self) -> None:
        while self._holds and self._free:
            self._free -= 1
            end_s = self._timeline.now_s + self._holds.popleft()
            self._timeline.at(end_s, self._release, self._life)
