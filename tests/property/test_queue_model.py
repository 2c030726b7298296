"""The queue against a list that recounts everything each time: slow, and obviously right."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.errors import Code, ServingError
from scheduler.queue import Limits, RequestQueue, Taken, Waiting
from scheduler.types import InferRequest

LIMITS = Limits(max_queue_rows=20, max_queue_bytes=120, max_batch_rows=8)
DELAYED = Limits(max_queue_rows=20, max_queue_bytes=120, max_batch_rows=8, max_delay_s=3.0)


@dataclass
class ModelQueue:
    """What the queue must do, said in the plainest way."""

    limits: Limits
    entries: list[Waiting] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(entry.request.rows for entry in self.entries)

    def refuses(self, entry: Waiting) -> str | None:
        size_bytes = sum(held.request.size_bytes for held in self.entries)
        if self.rows + entry.request.rows > self.limits.max_queue_rows:
            return "max_queue_rows"
        if size_bytes + entry.request.size_bytes > self.limits.max_queue_bytes:
            return "max_queue_bytes"
        return None

    def take(self, now: float) -> Taken:
        if self.entries and self.rows < self.limits.max_batch_rows:
            due_s = self.entries[0].arrived_s + self.limits.max_delay_s
            if now < due_s:
                return Taken(wake_s=due_s)
        batch: list[Waiting] = []
        expired: list[Waiting] = []
        for entry in self.entries:
            rows = sum(chosen.request.rows for chosen in batch) + entry.request.rows
            if entry.deadline_s <= now:
                expired.append(entry)
            elif rows <= self.limits.max_batch_rows:
                batch.append(entry)
            else:
                break
        self.entries = self.entries[len(batch) + len(expired) :]
        return Taken(tuple(batch), tuple(expired))


class QueueMachine(RuleBasedStateMachine):
    limits = LIMITS

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.queue = RequestQueue(self.limits)
        self.model = ModelQueue(self.limits)
        self.gone: list[Waiting] = []

    @rule(
        rows=st.integers(1, 8),
        size_bytes=st.integers(0, 60),
        timeout_s=st.sampled_from([0.5, 2.0, 5.0, math.inf]),
    )
    def push(self, rows: int, size_bytes: int, timeout_s: float) -> None:
        request = InferRequest("", rows, {"bytes": np.zeros(size_bytes, np.uint8)})
        entry = Waiting(request, self.now_s, self.now_s + timeout_s)
        limit = self.model.refuses(entry)
        if limit is None:
            self.queue.push(entry)
            self.model.entries.append(entry)
            return
        with pytest.raises(ServingError, match=limit) as refusal:
            self.queue.push(entry)
        assert refusal.value.code is Code.OVERLOADED

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 4.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def take(self) -> None:
        taken = self.queue.take(self.now_s)
        assert taken == self.model.take(self.now_s)
        assert sum(entry.request.rows for entry in taken.batch) <= self.limits.max_batch_rows
        self.gone += [*taken.batch, *taken.expired]

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.model.entries))
        self.model.entries.remove(entry)
        assert self.queue.remove(entry)
        self.gone.append(entry)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def remove_what_is_gone(self, data: st.DataObject) -> None:
        assert not self.queue.remove(data.draw(st.sampled_from(self.gone)))

    @rule()
    def drain(self) -> None:
        assert self.queue.drain() == tuple(self.model.entries)
        self.gone += self.model.entries
        self.model.entries = []

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.queue) == len(self.model.entries)
        assert self.queue.rows == self.model.rows
        assert self.queue.rows <= self.limits.max_queue_rows


class DelayedQueueMachine(QueueMachine):
    limits = DELAYED


QUICK = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestQueue = QueueMachine.TestCase
TestQueue.settings = QUICK
TestDelayedQueue = DelayedQueueMachine.TestCase
TestDelayedQueue.settings = QUICK
