"""Random schedules of arrivals, cancels, deadlines and failures over the real scheduler.

The clock is manual and every run is held, so a seed is a schedule. What must hold is checked
after each turn and at the end.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from backends.fake import FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.observer import DropReason, Observer
from scheduler.options import SchedulerOptions
from scheduler.scheduler import Scheduler
from scheduler.types import Batch, InferRequest, InferResponse, Timing
from tests.fixtures.gates import HeldRun, Outputs, TwistedBackend, make_request
from tests.fixtures.manual_clock import clock, on_manual_clock, settle

pytestmark = pytest.mark.timeout(20)

FAULTS = {
    "raises": Code.INTERNAL,
    "refuses": Code.UNSUPPORTED,
    "short": Code.INTERNAL,
    "dtype": Code.INTERNAL,
    "name": Code.INTERNAL,
}


def fault_of(request: InferRequest) -> str:
    return request.id.partition(" ")[2]


def misbehave(batch: Batch, outputs: Outputs) -> Outputs:
    """Do what the first faulty request of the batch is called after."""
    scores = outputs["default"]
    match next(filter(None, map(fault_of, batch.requests)), ""):
        case "raises":
            raise RuntimeError("on purpose")
        case "refuses":
            raise ServingError(Code.UNSUPPORTED, "on purpose")
        case "short":
            return {"default": scores[:-1]}
        case "dtype":
            return {"default": scores.astype(np.float64)}
        case "name":
            return {"score": scores}
    return outputs


@dataclass(eq=False)
class Asked:
    """One request of the schedule and what has been done to it."""

    request: InferRequest
    deadline_s: float
    valid: bool
    started: bool = False
    cancelled: bool = False
    cancelled_unstarted: bool = False
    task: asyncio.Task[InferResponse] = field(init=False)

    @property
    def error(self) -> ServingError | None:
        """The error it ended with, None for an answer; anything but a ServingError is a bug."""
        error = self.task.exception()
        assert error is None or isinstance(error, ServingError), repr(error)
        return error

    @property
    def admitted(self) -> bool:
        if not self.started or not self.valid:
            return False
        return self.task.cancelled() or not self.error or self.error.code is not Code.OVERLOADED


class Schedule(Observer):
    """Drive one scheduler at random, watching it as its observer."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.max_delay_s = self.random.choice([0.0, 0.0, 1.0])
        self.lanes = self.random.choice([1, 1, 2, 3])
        self.backend = TwistedBackend(FakeOptions(lanes=self.lanes, max_batch_rows=8), misbehave)
        self.backend.before_run = self.hold
        options = SchedulerOptions(max_queue_rows=24, max_delay_s=self.max_delay_s)
        self.loop = clock()
        self.scheduler = Scheduler(self.backend, options, self, lambda: None)
        self.events: asyncio.Queue[HeldRun | None] = asyncio.Queue()
        self.held: list[HeldRun] = []
        self.all: list[Asked] = []
        self.failed_runs: list[Batch] = []
        self.drops: Counter[DropReason] = Counter()

    def hold(self, batch: Batch) -> None:
        run = HeldRun(batch)
        self.loop.call_soon_threadsafe(self.events.put_nowait, run)
        run.wait()

    def computed(self, model: str, batch: Batch, timings: tuple[Timing, ...]) -> None:
        self.events.put_nowait(None)

    def dropped(self, model: str, reason: DropReason) -> None:
        self.drops[reason] += 1

    def arrive(self) -> None:
        """Ask; some requests are faulty, some are invalid, some are in a hurry."""
        seed = len(self.all)
        fault = self.random.choice([*[""] * 30, *FAULTS])
        timeout_s = self.random.choice([0.5, 1.5, 4.0, np.inf, np.inf, np.inf])
        request = make_request(self.random.randint(1, 5), seed, timeout_s=timeout_s)
        asked = Asked(
            replace(request, id=f"{seed} {fault}"),
            self.loop.time() + timeout_s,
            valid=self.random.random() > 0.05,
        )
        if not asked.valid:
            request.inputs["id_list_features.lengths"][0, 0] = -1
        asked.task = asyncio.create_task(self.ask(asked))
        self.all.append(asked)

    async def ask(self, asked: Asked) -> InferResponse:
        asked.started = True
        asked.deadline_s = self.loop.time() + asked.request.timeout_s
        return await self.scheduler.infer(asked.request)

    def cancel(self) -> None:
        pending = [asked for asked in self.all if not asked.task.done()]
        if pending:
            asked = self.random.choice(pending)
            asked.cancelled_unstarted = not self.has_begun(asked)
            asked.cancelled = asked.task.cancel()

    def has_begun(self, asked: Asked) -> bool:
        """Return whether a lane has ``asked`` already, on its thread or on the way there."""
        taken = (entry for batch, _ in self.scheduler._running.values() for entry in batch)
        return any(entry.request is asked.request for entry in taken)

    def pass_time(self) -> None:
        self.loop.advance(self.random.choice([0.25, 0.5, 1.0]))

    def end_a_run(self) -> None:
        """Let a held run go on; a run of several may fail as a whole."""
        run = self.held.pop(self.random.randrange(len(self.held)))
        if len(run.batch.requests) > 1 and self.random.random() < 0.2:
            self.failed_runs.append(run.batch)
            run.fail(RuntimeError("the whole batch"))
        else:
            run.finish()

    async def quiet(self) -> None:
        """Wait until every busy lane is held and the loop has nothing to do."""
        await settle()
        while len(self.held) < len(self.scheduler._running):
            event = await self.events.get()
            if event is not None:
                self.held.append(event)
        await settle()
        self.check_now()

    def check_now(self) -> None:
        scheduler = self.scheduler
        assert scheduler._queue.rows <= 24
        if not self.max_delay_s:
            assert not scheduler._idle or not len(scheduler._queue), "a lane idles while work waits"
        for asked in self.all:
            late = asked.started and asked.deadline_s <= self.loop.time()
            assert asked.task.done() or not late, f"{asked.request.id}: deadline passed, no answer"

    async def turn(self) -> None:
        """Do a few things in one turn of the loop, then let it come to rest."""
        actions = [self.arrive] * 6 + [self.cancel, self.pass_time]
        for _ in range(self.random.randint(0, 4)):
            self.random.choice(actions)()
        if self.random.random() < 0.5:
            await settle()
        if self.held and self.random.random() < 0.7:
            self.end_a_run()
        await self.quiet()

    async def finish(self) -> None:
        """Let everything that was asked end, and close."""
        while not all(asked.task.done() for asked in self.all):
            if self.held:
                self.end_a_run()
            else:
                self.loop.advance(self.max_delay_s)
            await self.quiet()
        while self.held:  # runs whose every request has left
            self.end_a_run()
            await self.quiet()
        await self.scheduler.close(grace_s=1.0)


def check_answers(schedule: Schedule) -> None:
    """Everybody has exactly the one answer the schedule allows, and right scores."""
    for asked in schedule.all:
        name, fault = asked.request.id, fault_of(asked.request)
        if asked.cancelled:
            assert asked.task.cancelled(), name
        elif (error := asked.error) is None:
            scores = schedule.backend.score(asked.request)
            assert np.array_equal(asked.task.result().outputs["default"], scores), name
            assert asked.valid, name
            assert not fault, name
        elif error.code is Code.DEADLINE_EXCEEDED:
            assert asked.deadline_s <= schedule.loop.time(), name
        elif error.code is not Code.OVERLOADED:
            assert error.code is (FAULTS[fault] if asked.valid else Code.INVALID_REQUEST), name


def check_runs(schedule: Schedule) -> None:
    """No row ran twice but for the retry, and every admitted request is accounted for."""
    runs: dict[str, list[Batch]] = {asked.request.id: [] for asked in schedule.all}
    for batch in schedule.backend.batches:
        assert batch.rows <= 8
        numbers = [int(request.id.partition(" ")[0]) for request in batch.requests]
        assert numbers == sorted(numbers), "first come, first served"
        for request in batch.requests:
            runs[request.id].append(batch)
    for asked in schedule.all:
        mine = runs[asked.request.id]
        failed = bool(mine) and len(mine[0].requests) > 1 and has_failed(schedule, mine[0])
        assert len(mine) <= 1 + failed, f"{asked.request.id} ran {len(mine)} times"
        assert not (mine and asked.cancelled_unstarted), f"{asked.request.id} ran though cancelled"
        assert not (mine and not asked.admitted), f"{asked.request.id} ran though refused"
    started = sum(bool(batches) for batches in runs.values())
    dropped = schedule.drops["deadline"] + schedule.drops["cancelled"]
    assert started + dropped == sum(asked.admitted for asked in schedule.all)
    assert schedule.drops["queue_full"] == sum(
        asked.valid and not asked.task.cancelled() and not asked.admitted for asked in schedule.all
    )


def has_failed(schedule: Schedule, batch: Batch) -> bool:
    failed = any(batch is run for run in schedule.failed_runs)
    return failed or any(fault_of(request) for request in batch.requests)


@pytest.mark.parametrize("seed", range(150))
@on_manual_clock
async def test_every_schedule_answers_each_request_once_and_rightly(seed: int) -> None:
    schedule = Schedule(seed)
    for _ in range(40):
        await schedule.turn()
    await schedule.finish()
    check_answers(schedule)
    check_runs(schedule)
