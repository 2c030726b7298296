"""The queue against the model of it: whatever happens, both say the same."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.errors import ServingError
from scheduler.queue import RequestQueue
from scheduler.types import InferRequest
from scheduler.waiting import BatchSeconds, Limits, Waiting, no_forecast
from tests.property.queue_model import GROUPS, PRIORITIES, Look, ModelQueue, cuts

SMALL = st.lists(st.integers(0, 3), min_size=1, max_size=3)
LARGE = st.lists(st.integers(0, 3), min_size=6, max_size=20)


def slow(rows: int, ids: int) -> float:
    return (1 + rows + ids) / 64


class QueueMachine(RuleBasedStateMachine):
    """Times are multiples of 1/64, so that both sides add them up without rounding."""

    limits = Limits(60, 120, max_batch_rows=8, max_batch_ids=1000, ageing_s=2.0)

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.queue = RequestQueue(self.limits)
        self.model = ModelQueue(self.limits)
        self.gone: list[Waiting] = []
        self.rows_served: dict[Waiting, int] = {}

    @rule(
        after_s=st.sampled_from([0.0, 0.0, 0.125, 0.25, 1.0]),
        row_ids=SMALL | SMALL | LARGE,
        size_bytes=st.sampled_from([0] * 6 + [10, 60, 120, 121]),
        timeout_s=st.sampled_from([0.5, 1.0, 1.5, 4.0, math.inf]),
        priority=st.just(0) | st.sampled_from(PRIORITIES),
        group=st.just(()) | st.sampled_from(GROUPS),
    )
    def push(
        self,
        after_s: float,
        row_ids: list[int],
        size_bytes: int,
        timeout_s: float,
        priority: int,
        group: tuple[str, ...],
    ) -> None:
        self.now_s += after_s
        inputs = {"bytes": np.zeros(size_bytes, np.uint8)}
        request = InferRequest("", len(row_ids), inputs, priority=priority)
        fits = len(row_ids) <= self.limits.max_batch_rows
        fits = fits and sum(row_ids) <= self.limits.max_batch_ids
        before = None if fits else np.cumsum([0, *row_ids])
        deadline_s = self.now_s + timeout_s
        waiting = Waiting(request, self.now_s, deadline_s, sum(row_ids), before, group)
        refusal = self.model.refuses(waiting)
        if refusal is None:
            self.queue.push(waiting)
            self.model.push(waiting, row_ids)
            return
        code, limit = refusal
        with pytest.raises(ServingError, match=limit) as raised:
            self.queue.push(waiting)
        assert raised.value.code is code

    @rule(
        after_s=st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 4.0]),
        at_once=st.booleans(),
        batch_s=st.sampled_from([no_forecast, slow]),
    )
    def take(self, after_s: float, at_once: bool, batch_s: BatchSeconds) -> None:
        self.now_s += after_s
        taken = self.queue.take(self.now_s, at_once=at_once, batch_s=batch_s)
        look = Look(cuts(taken.batch), set(cuts(taken.expired)), taken.wake_s)
        assert look == self.model.take(self.now_s, at_once, batch_s)
        assert len(look.expired) == len(taken.expired)
        for cut in look.batch:  # each row once, in order
            assert cut.start == self.rows_served.get(cut.waiting, 0) < cut.stop
            self.rows_served[cut.waiting] = cut.stop
        for cut in look.expired:
            assert cut.start == self.rows_served.get(cut.waiting, 0)
        left = [*taken.batch, *taken.expired]
        self.gone += [one.waiting for one in left if one.stop == one.waiting.request.rows]

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.model.entries))
        self.model.entries.remove(entry)
        assert self.queue.remove(entry.waiting) == (entry.start == 0)
        self.gone.append(entry.waiting)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def remove_what_is_gone(self, data: st.DataObject) -> None:
        assert not self.queue.remove(data.draw(st.sampled_from(self.gone)))

    @rule()
    def drain(self) -> None:
        expected = [self.model.leave(entry) for entry in tuple(self.model.entries)]
        assert cuts(self.queue.drain()) == expected
        self.gone += [cut.waiting for cut in expected]

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.queue) == len(self.model.entries)
        assert self.queue.rows == self.model.load().rows <= self.limits.max_queue_rows
        assert self.queue.full == self.model.full()
        for priority in PRIORITIES:
            assert self.queue.up_to(priority) == self.model.up_to(priority)


class DelayedMachine(QueueMachine):
    limits = replace(QueueMachine.limits, max_delay_s=3.0)


class BudgetMachine(QueueMachine):
    """Ids run out before rows do."""

    limits = replace(QueueMachine.limits, max_batch_ids=5, max_delay_s=0.5)


class SingleMachine(QueueMachine):
    """One request a batch, as in worker mode."""

    limits = replace(QueueMachine.limits, max_batch_requests=1)


class HastyMachine(QueueMachine):
    """Age outweighs class and deadline soon; up to three requests a batch."""

    limits = replace(QueueMachine.limits, ageing_s=0.25, max_batch_requests=3, max_delay_s=1.0)


QUICK = settings(max_examples=100, stateful_step_count=50)
TestQueue = QueueMachine.TestCase
TestQueue.settings = QUICK
TestDelayed = DelayedMachine.TestCase
TestDelayed.settings = QUICK
TestBudget = BudgetMachine.TestCase
TestBudget.settings = QUICK
TestSingle = SingleMachine.TestCase
TestSingle.settings = QUICK
TestHasty = HastyMachine.TestCase
TestHasty.settings = QUICK
