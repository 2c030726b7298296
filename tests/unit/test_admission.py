"""What is measured of a request before it waits, and who is told at once that it cannot."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.admission import TIMEOUT_SHARE, Admission
from scheduler.errors import Code, Missed, ServingError
from scheduler.forecast import MIN_BATCHES, STALE_S
from scheduler.lanes import Job
from scheduler.observer import DropReason
from scheduler.options import SchedulerOptions
from scheduler.queue import RequestQueue
from scheduler.runner import Runner
from scheduler.types import InferRequest, ModelSpec, TensorSpec
from scheduler.waiting import Piece, Waiting
from tests.fixtures.entries import waiting
from tests.fixtures.gates import Gate, make_request

SPEC = replace(FakeBackend(FakeOptions(max_batch_rows=8)).spec, max_request_rows=64)


@dataclass(slots=True)
class Desk:
    """Admission to the queue of one lane, which a test keeps idle or busy; the clock stands."""

    queue: RequestQueue
    runner: Runner
    gate: Gate
    drops: list[DropReason] = field(default_factory=list)
    missed: list[tuple[Missed, ...]] = field(default_factory=list)

    def admission(self, spec: ModelSpec = SPEC, **options: Any) -> Admission:
        backend = FakeBackend(FakeOptions())
        chosen = SchedulerOptions(**options)
        return Admission(backend, spec, chosen, self.queue, self.runner, self.drops.append)

    def learn(self, batches: int = MIN_BATCHES) -> None:
        """Let the forecast see ``batches`` take 10 ms each, whatever was in them."""
        for _ in range(batches):
            self.runner.forecast.observe(0, 0, 0.010, 0.0)

    async def occupy(self) -> None:
        """Keep the lane busy."""
        self.runner.start(Job((Piece(Waiting(make_request(1), 0.0), 0, 1, 0),)))
        await self.gate.began()

    def line_up(self, batches: int, priority: int = 0) -> None:
        for _ in range(batches):
            self.queue.push(waiting(8, timeout_s=60.0, priority=priority))


@contextlib.asynccontextmanager
async def desk(**options: Any) -> AsyncIterator[Desk]:
    backend = FakeBackend(FakeOptions(max_batch_rows=8))
    backend.before_run = gate = Gate()
    chosen = SchedulerOptions(**options)
    runner = Runner(
        backend, chosen, lambda: 0.0, lambda piece: True, lambda job: None, lambda reason: None
    )
    try:
        yield Desk(RequestQueue(chosen.limits(SPEC)), runner, gate)
    finally:
        gate.open()
        runner.stop()
        assert await asyncio.to_thread(runner.join, 10.0)


def request_of(*row_ids: int, **fields: Any) -> InferRequest:
    """Return a request whose rows have so many ids of the first feature and none of the second."""
    inputs: dict[str, Any] = {
        "float_features": np.zeros((len(row_ids), 3), np.float32),
        "id_list_features.lengths": np.array([row_ids, [0] * len(row_ids)]),
        "id_list_features.values": np.zeros(sum(row_ids), np.int64),
    }
    return InferRequest("fake", len(row_ids), inputs, **fields)


def full(timeout_s: float = math.inf, priority: int = 0) -> InferRequest:
    return request_of(*[1] * 8, timeout_s=timeout_s, priority=priority)


def refusal_of(admission: Admission, request: InferRequest, now: float = 0.0) -> ServingError:
    with pytest.raises(ServingError) as refusal:
        admission.admit(request, now)
    return refusal.value


async def test_a_request_that_the_spec_the_backend_or_the_options_rule_out_is_refused() -> None:
    async with desk() as one:
        bad_id = request_of(1)
        bad_id.inputs["id_list_features.values"].fill(1000)
        for request in (replace(bad_id, inputs={}), bad_id):
            with pytest.raises(ServingError) as refusal:
                one.admission().check(request, one.missed.append)
            assert refusal.value.code is Code.INVALID_REQUEST
        one.admission().check(make_request(64), one.missed.append)
        with pytest.raises(ServingError, match="priority: must be 0 to 1, got 2"):
            one.admission(priorities=2).check(make_request(1, priority=2), one.missed.append)


async def test_an_admitted_request_waits_and_knows_its_arrival_deadline_and_ids() -> None:
    async with desk() as one:
        request = request_of(3, 0, 4, timeout_s=0.5)
        entry = one.admission().admit(request, now=7.0)
        assert entry.request is request
        assert (entry.arrived_s, entry.deadline_s, entry.ids) == (7.0, 7.5, 7)
        assert entry.group == ()
        assert (len(one.queue), one.queue.rows, one.drops) == (1, 3, [])
        assert one.admission().admit(request_of(1), now=7.0).deadline_s == math.inf


async def test_only_a_request_larger_than_a_batch_knows_the_ids_before_each_row() -> None:
    async with desk() as one:
        admission = one.admission(max_batch_ids=16)
        assert admission.admit(request_of(*[2] * 8), 0.0).ids_before is None
        for row_ids in ([0] * 9, [2] * 7 + [3]):
            before = admission.admit(request_of(*row_ids), 0.0).ids_before
            assert before is not None
            assert before.tolist() == [sum(row_ids[:row]) for row in range(len(row_ids) + 1)]


async def test_a_row_with_more_ids_than_a_batch_holds_is_invalid_naming_row_count_and_limit() -> (
    None
):
    async with desk() as one:
        admission = one.admission(max_batch_ids=16)
        refusal = refusal_of(admission, request_of(1, 17, 2, 40, 1))
        assert refusal.code is Code.INVALID_REQUEST
        assert refusal.detail == "rows: row 3 has 40 ids, above the limit of 16 ids (max_batch_ids)"
        assert len(one.queue) == 0
        admission.admit(request_of(1, 16, 16), 0.0)


async def test_the_optional_inputs_make_the_group_and_the_outputs_asked_for_do_not() -> None:
    optional = [
        TensorSpec(name, np.dtype(np.float32), ("rows",), optional=True) for name in ("a", "b")
    ]
    spec = replace(SPEC, inputs=(*SPEC.inputs, *optional))
    async with desk() as one:

        def group(*names: str) -> tuple[str, ...]:
            request = request_of(1, 1, outputs=("default",))
            inputs = {**{name: np.zeros(2, np.float32) for name in names}, **request.inputs}
            return one.admission(spec).admit(replace(request, inputs=inputs), 0.0).group

        assert group() == one.admission(spec).admit(request_of(1), 0.0).group == ()
        assert group("a", "b") == group("b", "a")
        assert len({group(), group("a"), group("b"), group("a", "b")}) == 4


async def test_a_request_that_cannot_be_answered_in_time_is_refused_with_an_estimate() -> None:
    async with desk() as one:
        one.learn()
        await one.occupy()
        one.line_up(8)
        refusal = refusal_of(one.admission(), full(timeout_s=0.05))
        assert refusal.code is Code.OVERLOADED
        for fact in ("about 100 ms", "timeout of 50 ms"):
            assert fact in refusal.detail
        # When so much less waits that the same request would be let in.
        assert refusal.retry_after_s == pytest.approx(0.100 - TIMEOUT_SHARE * 0.05, rel=1e-3)
        assert (len(one.queue), one.drops) == (8, ["predicted_late"])


async def test_a_full_queue_refuses_with_the_time_that_what_waits_will_take() -> None:
    async with desk(max_queue_rows=24) as one:
        one.learn()
        await one.occupy()
        one.line_up(2)
        one.line_up(1, priority=3)
        refusal = refusal_of(one.admission(), full())
        assert refusal.code is Code.OVERLOADED
        assert refusal.retry_after_s == pytest.approx(0.040, rel=1e-3)
        assert one.drops == ["queue_full"]


async def test_a_request_that_no_queue_could_hold_is_given_no_time_to_retry() -> None:
    async with desk(max_queue_bytes=1) as one:
        one.learn()
        refusal = refusal_of(one.admission(), full())
        assert refusal.code is Code.PAYLOAD_TOO_LARGE
        assert refusal.retry_after_s is None


async def test_a_request_is_let_in_while_the_estimate_is_within_its_share_of_the_timeout() -> None:
    async with desk() as one:
        one.learn()
        await one.occupy()
        one.line_up(8)
        limit_s = 0.100 / TIMEOUT_SHARE
        refusal_of(one.admission(), full(timeout_s=0.99 * limit_s))
        entry = one.admission().admit(full(timeout_s=1.01 * limit_s), 0.0)
        assert entry.expected_s == pytest.approx(0.100, rel=1e-3)


async def test_a_request_does_not_wait_for_the_classes_below_its_own() -> None:
    async with desk() as one:
        one.learn()
        await one.occupy()
        one.line_up(8, priority=1)
        one.admission().admit(full(timeout_s=0.05), 0.0)
        for priority in (1, 2):
            refusal_of(one.admission(), full(timeout_s=0.05, priority=priority))


async def test_field_report_b16_nobody_is_refused_before_the_forecast_has_data() -> None:
    async with desk() as one:
        one.learn(MIN_BATCHES - 1)
        await one.occupy()
        assert one.admission().admit(full(timeout_s=1e-6), 0.0).expected_s == 0.0
        one.learn(1)
        refusal_of(one.admission(), full(timeout_s=1e-6))


async def test_nobody_is_refused_by_a_forecast_that_is_out_of_date() -> None:
    async with desk() as one:
        one.learn()
        await one.occupy()
        refusal_of(one.admission(), full(timeout_s=1e-6), now=STALE_S - 0.1)
        one.admission().admit(full(timeout_s=1e-6), now=STALE_S + 0.1)


async def test_what_nothing_stands_in_the_way_of_is_tried() -> None:
    async with desk() as one:
        one.learn()
        one.admission().admit(full(timeout_s=1e-6), 0.0)
        refusal_of(one.admission(), full(timeout_s=1e-6))  # now something waits


async def test_a_request_without_timeout_is_never_late() -> None:
    async with desk() as one:
        one.learn()
        await one.occupy()
        one.line_up(100)
        assert one.admission().admit(full(), 0.0).expected_s == 0.0


async def test_nobody_is_refused_where_that_is_switched_off() -> None:
    async with desk() as one:
        one.learn()
        await one.occupy()
        one.line_up(8)
        one.admission(refuse_late=False).admit(full(timeout_s=1e-6), 0.0)


async def test_a_request_with_a_deadline_does_not_wait_for_those_of_its_class_without_one() -> None:
    async with desk() as one:
        one.learn()
        await one.occupy()
        for _ in range(8):
            one.queue.push(waiting(8))
        one.admission().admit(full(timeout_s=0.05), 0.0)


async def test_ids_without_a_row_are_told_whether_served_or_refused() -> None:
    async with desk() as one:
        backend = FakeBackend(FakeOptions(ids=("cat_1=zero",)))
        backend.load()
        admission = Admission(
            backend, SPEC, SchedulerOptions(), one.queue, one.runner, one.drops.append
        )
        inputs = dict(make_request(1).inputs)
        inputs["id_list_features.lengths"] = np.array([[1], [2]])
        inputs["id_list_features.values"] = np.array([5, -1, 7])
        wild = replace(make_request(1), inputs=inputs)
        served = admission.check(wild, one.missed.append)
        assert served.inputs["id_list_features.values"].tolist() == [5, 7]
        inputs["id_list_features.values"] = np.array([-5, -1, 7])
        with pytest.raises(ServingError):
            admission.check(replace(wild, inputs=inputs), one.missed.append)
    assert one.missed == [(Missed("cat_1", "zero", 1),), (Missed("cat_0", "reject", 1),)]
