"""A shadow version gets copies of requests, and nothing it does touches an answer."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from scheduler.engine import Engine
from scheduler.observer import Shadowed
from scheduler.options import SchedulerOptions
from scheduler.routing import Part, Routes, ShadowRoute
from scheduler.shadow import AFTER_S
from scheduler.types import Batch
from tests.fixtures.gates import Gate, Outputs, Recorder, Watched, make_request
from tests.fixtures.manual_clock import clock, on_manual_clock, pass_time, settle, turn_until

pytestmark = pytest.mark.timeout(60)

ROUTE = ShadowRoute("2", share=1.0, max_in_flight=2, timeout_s=1.0)


class Watching(Recorder):
    """Remember also what became of copies."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Shadowed] = []

    def shadowed(self, record: Shadowed) -> None:
        self.copies.append(record)

    @property
    def outcomes(self) -> list[str]:
        return [record.outcome for record in self.copies]


class Other(Watched):
    """Version 2, whose scores are ``off`` from those of the fake."""

    def __init__(self, off: float = 0.0) -> None:
        super().__init__(version="2")
        self._off = np.float32(off)

    def run(self, batch: Batch) -> Outputs:
        return {name: np.add(scores, self._off) for name, scores in super().run(batch).items()}


async def copies_begin() -> None:
    """Pass the time after which copies of what has been answered begin."""
    await settle()
    await pass_time(AFTER_S)


@dataclass(frozen=True)
class Shadowing:
    """An engine that answers with version 1 and copies to version 2."""

    engine: Engine
    first: Watched
    watching: Watching

    async def ask(self, seed: int = 0, rows: int = 3) -> None:
        """Ask, and fail unless the answer is version 1's own."""
        request = make_request(rows, seed)
        answer = await self.engine.infer(request)
        assert answer.version == "1"
        assert np.array_equal(answer.outputs["default"], self.first.score(request))

    async def outcome(self) -> Shadowed:
        """Return what became of the next copy."""
        before = len(self.watching.copies)
        await copies_begin()
        await turn_until(lambda: len(self.watching.copies) > before)
        return self.watching.copies[-1]


@contextlib.asynccontextmanager
async def shadowing(
    shadow: Watched, route: ShadowRoute = ROUTE, options: SchedulerOptions | None = None
) -> AsyncIterator[Shadowing]:
    first, watching = Watched(version="1"), Watching()
    options = options or SchedulerOptions(watchdog_s=0.0)
    engine = Engine(options, watching, clock().time)
    for backend in (first, shadow):
        await engine.load(backend)
    engine.open()
    engine.route("fake", Routes(shadow=route))
    try:
        yield Shadowing(engine, first, watching)
    finally:
        await engine.close(grace_s=0.0)


@on_manual_clock
async def test_the_differences_of_a_shadows_scores_are_told_and_the_answer_is_the_old_ones() -> (
    None
):
    async with shadowing(Other(off=0.5)) as state:
        assert state.engine.spec("fake").version == "1"  # though 2 was loaded last
        await state.ask()
        record = await state.outcome()
        assert (record.model, record.version, record.outcome) == ("fake", "2", "compared")
        assert record.max_difference == pytest.approx(0.5)
        assert record.mean_difference == pytest.approx(0.5)


@on_manual_clock
async def test_a_shadow_that_raises_is_counted_and_nobody_else_hears_of_it() -> None:
    shadow = Other()

    def fail(batch: Batch) -> None:
        raise ZeroDivisionError("no scores today")

    shadow.before_run = fail
    async with shadowing(shadow) as state:
        for seed in range(3):
            await state.ask(seed)
            assert (await state.outcome()).outcome == "failed"
        assert state.engine.ready
        assert state.engine.live
        assert state.watching.drops == []


@on_manual_clock
async def test_a_shadow_that_hangs_costs_a_bounded_number_of_copies_and_no_answer() -> None:
    shadow = Other()
    gate = shadow.before_run = Gate()
    async with shadowing(shadow) as state:
        for seed in range(5):
            await state.ask(seed)
            await copies_begin()
        await gate.began()
        assert state.watching.outcomes == ["behind"] * 3
        await pass_time(ROUTE.timeout_s)
        await turn_until(lambda: len(state.watching.copies) == 5)
        assert state.watching.outcomes[3:] == ["late", "late"]
        await state.ask(9)
        gate.open()


@on_manual_clock
async def test_a_shadow_that_fails_for_good_leaves_the_server_ready_and_live() -> None:
    shadow = Other()
    gate = shadow.before_run = Gate()
    options = SchedulerOptions(watchdog_s=5.0)
    async with shadowing(shadow, options=options) as state:
        await state.ask()
        await copies_begin()
        await gate.began()
        await pass_time(5.0)
        await turn_until(lambda: len(state.watching.copies) == 1)
        await state.ask(1)
        assert (await state.outcome()).outcome == "failed"
        assert state.engine.ready
        assert state.engine.live
        gate.open()


@on_manual_clock
async def test_nothing_is_copied_while_requests_wait_for_the_version_that_answers() -> None:
    async with shadowing(Other()) as state:
        gate = state.first.before_run = Gate()
        tasks = [asyncio.create_task(state.ask(seed, rows=1024)) for seed in range(5)]
        (await gate.began()).finish()
        await tasks[0]
        assert state.watching.outcomes == ["busy"]
        gate.open()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("share", [0.0, 0.5])
@on_manual_clock
async def test_a_share_of_the_requests_is_copied(share: float) -> None:
    route = replace(ROUTE, share=share, max_in_flight=1000)
    async with shadowing(Other(), route) as state:
        for seed in range(100):
            await state.ask(seed, rows=1)
        await copies_begin()
        expected = range(20, 81) if share else range(1)
        await turn_until(lambda: not state.engine._models.copies)
        assert len(state.watching.copies) in expected


@pytest.mark.parametrize("mode", ["batch", "inline"])
@on_manual_clock
async def test_a_shadow_never_runs_on_the_event_loop_nor_in_the_models_own_metrics(
    mode: str,
) -> None:
    threads = []
    shadow = Other()
    shadow.before_run = lambda batch: threads.append(threading.current_thread())
    async with shadowing(shadow, options=SchedulerOptions(mode=mode, watchdog_s=0.0)) as state:
        for seed in range(5):
            await state.ask(seed, rows=1)
            await state.outcome()
        assert len(state.watching.runs) == 5
    assert threading.main_thread() not in threads


@on_manual_clock
async def test_a_shadow_whose_scores_are_no_numbers_cannot_be_compared() -> None:
    async with shadowing(Other(off=float("nan"))) as state:
        await state.ask()
        assert (await state.outcome()).outcome == "incomparable"


@on_manual_clock
async def test_scores_that_are_infinite_on_both_sides_cannot_be_compared() -> None:
    async with shadowing(Other()) as state:
        request = make_request(rows=2, seed=1)
        request.inputs["float_features"][0, 0] = np.inf
        answer = await state.engine.infer(request)
        assert np.isinf(answer.outputs["default"][0])
        assert (await state.outcome()).outcome == "incomparable"


@on_manual_clock
async def test_a_shadow_that_is_given_a_share_answers_and_is_copied_to_no_more() -> None:
    async with shadowing(Other()) as state:
        assert state.engine.spec("fake", "2").properties["shadow"] == "true"
        parts = (Part("1", "1", 1), Part("2", "2", 1))
        state.engine.route("fake", Routes(split=parts, shadow=ROUTE))
        assert "shadow" not in state.engine.spec("fake", "2").properties
        answered = {
            (await state.engine.infer(make_request(1, key=f"{number}"))).version
            for number in range(30)
        }
        assert answered == {"1", "2"}
        await copies_begin()
        assert state.watching.copies == []


@on_manual_clock
async def test_a_lone_version_is_no_shadow_of_itself() -> None:
    async with shadowing(Other()) as state:
        await state.engine.unload("fake", "1")
        assert (await state.engine.infer(make_request(1))).version == "2"
        await copies_begin()
        assert state.watching.copies == []


@on_manual_clock
async def test_requests_may_ask_a_shadow_by_name_and_are_not_copied_to_it() -> None:
    async with shadowing(Other(off=1.0)) as state:
        request = make_request(2, version="2")
        answer = await state.engine.infer(request)
        assert np.array_equal(answer.outputs["default"], state.first.score(request) + 1)
        await copies_begin()
        assert state.watching.copies == []


@on_manual_clock
async def test_closing_ends_copies_that_are_under_way() -> None:
    shadow = Other()
    gate = shadow.before_run = Gate()
    async with shadowing(shadow) as state:
        await state.ask()
        await copies_begin()
        await gate.began()
        await state.ask(1)  # its copy has not begun
        closing = state.engine.close(grace_s=0.0)
        gate.open()
        await closing
        assert not state.engine._models.copies
