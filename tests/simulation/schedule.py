"""One schedule: an engine, its models, and everything that may happen to them, at random."""

import asyncio
import math
import random
from collections.abc import Callable, Sized

from backends.fake import FakeOptions
from scheduler.engine import Engine
from scheduler.lanes import Job
from scheduler.types import InferResponse
from tests.fixtures.manual_clock import ManualClockLoop, clock
from tests.simulation.backend import SimulatedBackend
from tests.simulation.changes import MODELS, Changes
from tests.simulation.checks import (
    check_ready,
    check_rest,
    check_taken,
    found_waiting,
    note_failure,
)
from tests.simulation.fates import check_end
from tests.simulation.journal import Journal
from tests.simulation.setting import FOREVER_S, draw_options, draw_risks
from tests.simulation.threads import Crew, SimulatedQueue
from tests.simulation.traffic import Asked, Requests

STEPS_S = [0.0, 1 / 2048, 1 / 2048, 1 / 512, 1 / 512, 1 / 128, 1 / 32, 1 / 8]
TURNS = 100
PATIENCE = 3000  # turns in which a schedule must come to its end once nothing new comes


class Schedule:
    """Drive one engine at random."""

    def __init__(self, seed: int, story: list[str]) -> None:
        self.dice = random.Random(seed)
        self.loop = clock()
        self.options = draw_options(self.dice)
        self.risks = draw_risks(self.dice)
        self.max_batch_rows = self.dice.choice([4, 8, 8, 16])
        self.journal = Journal(self.loop, self.options, story)
        self.crew = Crew(self.loop.time, self._submitted, self._dawdles, self._stall)
        max_request_rows = max(self.options.max_queue_rows, self.max_batch_rows)
        self.requests = Requests(self.dice, self.options.max_batch_ids, max_request_rows)
        self.engine = Engine(self.options, self.journal, self.loop.time)
        self.engine.watch(self._notice_schedulers)
        self.changes = Changes(self.engine, self.journal, self.dice, self._make)
        self.closing: asyncio.Task[None] | None = None

    async def play(self) -> None:
        """Open, let anything happen, let everything end, close; check all along."""
        for model in MODELS:
            self.changes.load(model)
        await self._until(lambda: not self.changes.under_way)
        self.engine.open()
        for _ in range(TURNS):
            await self._turn()
        await self._until(lambda: not self.journal.pending)
        await self._until(lambda: not self.changes.under_way)
        await self._until(lambda: self.engine.ready or not self._recovers())
        self._close()
        await self._until(lambda: self.closing is None or self.closing.done())
        await self._until(lambda: not self.crew.threads)
        check_end(self.journal)

    def _recovers(self) -> bool:
        return self.options.on_failure == "reload" and not self.risks.load and not self.closing

    async def _turn(self) -> None:
        deeds = [self._arrive, self._step, self._pass_time, self._cancel, self._change, self._close]
        deed = self.dice.choices(deeds, [30, 60, 20, 6, 2, 0.1])[0]
        for _ in range(self.dice.choice([1, 1, 2, 4])):
            deed()
        for _ in range(self.dice.choice([0, 0, 1, 2])):
            await asyncio.sleep(0)
        if self.dice.random() < 0.3:
            await self._rest()

    async def _until(self, ended: Callable[[], bool]) -> None:
        """Go on, with nothing new, until it has ``ended``."""
        for _ in range(PATIENCE):
            await self._rest()
            if ended():
                return
            if self.crew.runnable() and self.dice.random() < 0.8:
                self._step()
            else:
                self._pass_time()
        raise AssertionError("it never ends")

    async def _rest(self) -> None:
        await come_to_rest(self.loop)
        self.journal.loop_saw_s = self.loop.time()
        assert not self.crew.faults, self.crew.faults
        check_rest(self.journal, self.crew)
        check_ready(self.journal, self.engine, closing=self.closing is not None)

    def _arrive(self) -> None:
        model = self.dice.choice([MODELS[0], MODELS[0], MODELS[0], MODELS[1]])
        version = ""
        if self.dice.random() < 0.15:
            model, version = self.dice.choice(self.changes.versions[-4:])
        asked = self.requests.draw(len(self.journal.asked), model, version)
        self.journal.asked.append(asked)
        self.journal.pending.append(asked)
        asked.task = asyncio.create_task(self._ask(asked))
        asked.task.add_done_callback(lambda _: self._answered(asked))

    async def _ask(self, asked: Asked) -> InferResponse:
        request = asked.request
        asked.asked_s, asked.asked_at = self.loop.time(), self.journal.tell(f"{asked} asks")
        asked.target = self.changes.target(request.model, request.version)
        asked.found_waiting = found_waiting(self.journal, self.crew, asked)
        self.loop.call_soon(self._first_step_ended, asked)
        return await self.engine.infer(request)

    def _first_step_ended(self, asked: Asked) -> None:
        asked.waited = not asked.task.done()

    def _answered(self, asked: Asked) -> None:
        self.journal.pending.remove(asked)
        asked.answered_s = self.loop.time()
        asked.forecast = self.journal.has_forecast(asked.request.model)
        asked.answered_at = self.journal.tell(f"{asked}: {asked.outcome}")

    def _change(self) -> None:
        if self.closing is None:
            self.changes.any()

    def _cancel(self) -> None:
        if self.journal.pending:
            asked = self.dice.choice(self.journal.pending)
            if asked.task.cancel():
                asked.cancelled_at = self.journal.tell(f"{asked} is cancelled")

    def _pass_time(self) -> None:
        self.loop.advance(self.dice.choice(STEPS_S if self.dice.random() < 0.97 else [1.5]))

    def _step(self) -> None:
        runnable = self.crew.runnable()
        if runnable:
            thread = self.dice.choice(runnable)
            self.journal.tell(f"{thread.name} goes on from {thread.parked_at}")
            self.crew.step(thread)

    def _close(self) -> None:
        if self.closing is None:
            grace_s = self.dice.choice([0.0, 1 / 16, FOREVER_S])
            self.journal.close_s = self.loop.time()
            self.journal.cut_off_s = self.loop.time() + grace_s
            self.journal.tell("the engine closes")
            self.closing = asyncio.create_task(self.engine.close(grace_s))

    def _submitted(self, job: Job, inbox: SimulatedQueue) -> None:
        check_taken(self.journal, self.crew, job, inbox)
        self.journal.submitted(job)

    def _dawdles(self) -> bool:
        return self.dice.random() < 0.2

    def _stall(self) -> None:
        self.loop.advance(self.dice.choice([0.0, 0.0, 1 / 4096, 1 / 64]))

    def _notice_schedulers(self) -> None:
        """Remember every scheduler: the engine forgets those that leave."""
        for scheduler in self.engine._schedulers():
            backend = scheduler._backend
            assert isinstance(backend, SimulatedBackend)
            self.journal.schedulers[backend] = scheduler
        for backend, scheduler in self.journal.schedulers.items():
            note_failure(self.journal, backend, scheduler)

    def _make(self, model: str, version: str) -> SimulatedBackend:
        lanes = self.dice.choice([1, 1, 2, 3])
        options = FakeOptions(name=model, lanes=lanes, max_batch_rows=self.max_batch_rows)
        backend = SimulatedBackend(options, version, self.crew, self.dice, self.risks)
        backend.journal = self.journal
        self.journal.made.append(backend)
        return backend


async def come_to_rest(loop: ManualClockLoop) -> None:
    """Let the loop run all that it can without a thread or the clock."""
    ready: Sized = getattr(loop, "_ready")  # noqa: B009
    seen_s = -math.inf
    while ready or seen_s < loop.time():
        seen_s = loop.time()
        await asyncio.sleep(0)  # timers that are due now run in the turn that follows
        await asyncio.sleep(0)
