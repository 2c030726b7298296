"""The gateway's batching rule, on plain numbers: what a free lane takes of what waits.

``scheduler/queue.py`` is the rule that serves; a property test holds the two to the same batches.
Here are no deadlines, priorities, forecasts or requests larger than a batch, and a request costs a
tenth.
"""

import math
from collections import deque


class Job:
    """One attempt at one part of a request, with one server; ``gone`` if nobody wants it."""

    __slots__ = ("gone", "part", "queued", "rows", "server")

    def __init__(self, rows: int, server: int = 0, part: object = None) -> None:
        self.rows = rows
        self.server = server
        self.part = part
        self.queued = False
        self.gone = False


class Line:
    """Jobs that wait, first come, first served."""

    def __init__(self, max_batch_rows: int, max_queue_rows: float = math.inf) -> None:
        self.rows = 0
        self._max_batch_rows = max_batch_rows
        self._max_queue_rows = max_queue_rows
        self._jobs: deque[Job] = deque()

    @property
    def full(self) -> bool:
        """Whether more arrivals could not make the next batch any larger."""
        return self.rows >= self._max_batch_rows

    def push(self, job: Job) -> bool:
        """Let ``job`` wait; return whether there was room."""
        if self.rows + job.rows > self._max_queue_rows:
            return False
        job.queued = True
        self.rows += job.rows
        self._jobs.append(job)
        return True

    def forget(self, job: Job) -> None:
        """Nobody wants ``job`` any more; if it waits, it will not be run."""
        job.gone = True
        if job.queued:
            job.queued = False
            self.rows -= job.rows

    def take(self, lanes: float) -> list[Job]:
        """Return the next batch; several free ``lanes``, or so many batches, share what waits."""
        share_rows = math.ceil(self.rows / max(1, lanes))
        batch: list[Job] = []
        rows = 0
        jobs = self._jobs
        while jobs and (rows < share_rows or jobs[0].gone):
            job = jobs[0]
            if job.gone:
                jobs.popleft()
                continue
            if batch and rows + job.rows > self._max_batch_rows:
                break
            jobs.popleft()
            job.queued = False
            rows += job.rows
            batch.append(job)
        self.rows -= rows
        return batch

    def drain(self) -> list[Job]:
        """Remove and return everything that is still wanted."""
        left = [job for job in self._jobs if not job.gone]
        self._jobs.clear()
        self.rows = 0
        for job in left:
            job.queued = False
        return left
