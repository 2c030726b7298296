"""A model that failed for good is made anew, if ``on_failure`` says so."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from backends.fake import FakeBackend
from scheduler.backend import Backend
from scheduler.engine import Engine
from scheduler.errors import Code, DeviceLostError, LoadError, ServingError
from scheduler.options import SchedulerOptions
from scheduler.types import Batch
from tests.fixtures.gates import Recorder, Watched, make_request
from tests.fixtures.manual_clock import clock, on_manual_clock, settle, turn_until

pytestmark = pytest.mark.timeout(60)

RELOAD = SchedulerOptions(on_failure="reload", watchdog_s=0.0)
PAUSES_S = [1.0, 2.0, 4.0, 8.0, 16.0]


def lose_the_device(batch: Batch) -> None:
    raise DeviceLostError("CUDA error: unspecified launch failure")


class Failing:
    """An engine whose one model has just lost its device; ``made`` is what ``remake`` gave."""

    def __init__(self, remake: Callable[[], Backend], options: SchedulerOptions) -> None:
        self.recorder = Recorder()
        self.engine = Engine(options, self.recorder)
        self.first = Watched()
        self.first.before_run = lose_the_device
        self.made = 0
        self.health: list[tuple[bool, bool]] = []
        self._remake = remake

    def remake(self) -> Backend:
        """Make the next backend; called on a thread."""
        self.made += 1
        return self._remake()

    async def code(self) -> Code | None:
        """Ask once; return the code of the error, None for an answer."""
        try:
            await self.engine.infer(make_request(1))
        except ServingError as error:
            return error.code
        return None

    async def pausing(self) -> None:
        """Wait until an attempt is being paused for."""
        await turn_until(lambda: bool(clock().timers()))

    async def attempt(self, pause_s: float) -> None:
        """Let the pause before the next attempt pass, and see that it is no shorter."""
        await self.pausing()
        before = self.made
        clock().advance(pause_s * 0.999)
        await settle()
        assert self.made == before
        clock().advance(pause_s * 0.001 + 1e-6)
        await turn_until(lambda: self.made > before)


@contextlib.asynccontextmanager
async def failing(
    remake: Callable[[], Backend], options: SchedulerOptions = RELOAD
) -> AsyncIterator[Failing]:
    """Serve a model that loses its device with the first request."""
    state = Failing(remake, options)
    await state.engine.load(state.first, remake=state.remake)
    state.engine.open()
    state.engine.watch(lambda: state.health.append((state.engine.ready, state.engine.live)))
    assert await state.code() is Code.INTERNAL
    try:
        yield state
    finally:
        await state.engine.close(grace_s=0.0)


def cannot_load(error: Exception | None = None) -> Callable[[], Backend]:
    """Return what makes backends whose every load fails; to be called on the loop."""
    broken = Watched(error=error or LoadError("the device is still lost"))
    return lambda: broken


@on_manual_clock
async def test_a_failed_model_is_made_anew_and_requests_meanwhile_are_unavailable() -> None:
    fresh = Watched()
    async with failing(lambda: fresh) as state:
        assert (state.engine.ready, state.engine.live) == (False, True)
        assert await state.code() is Code.UNAVAILABLE
        await state.pausing()
        assert state.first.calls[-1] == "close"  # its memory is free before the next one loads
        await state.attempt(PAUSES_S[0])
        await turn_until(lambda: state.engine.ready)
        assert await state.code() is None
        assert (state.engine.ready, state.engine.live) == (True, True)
        assert len(fresh.batches) == 1
        assert state.made == 1
        await turn_until(lambda: len(state.recorder.runs) + len(state.recorder.drops) == 2)
        assert state.recorder.reloads == ["ok"]


@on_manual_clock
async def test_a_model_reloaded_in_time_is_live_all_along() -> None:
    fresh = Watched()
    async with failing(lambda: fresh) as state:
        await state.attempt(PAUSES_S[0])
        await turn_until(lambda: state.engine.ready)
        assert all(live for _, live in state.health)
        assert state.health[0] == (False, True)
        assert state.health[-1] == (True, True)


@on_manual_clock
async def test_a_reload_that_fails_is_tried_again_after_a_pause_twice_as_long() -> None:
    fresh = Watched()
    broken = cannot_load()
    async with failing(lambda: fresh if state.made == 3 else broken()) as state:
        for pause_s in PAUSES_S[:3]:
            assert state.engine.live
            await state.attempt(pause_s)
        await turn_until(lambda: state.engine.ready)
        assert await state.code() is None


@on_manual_clock
async def test_reloading_gives_up_after_five_attempts_and_the_model_is_no_longer_live(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with failing(cannot_load()) as state:
        for pause_s in PAUSES_S:
            assert state.engine.live
            await state.attempt(pause_s)
        await turn_until(lambda: not state.engine.live)
        assert state.health[-1] == (False, False)
        assert state.made == 5
        assert await state.code() is Code.UNAVAILABLE
        assert clock().timers() == []
        assert "attempt 5 of 5: the device is still lost" in caplog.text
        assert state.recorder.reloads == ["failed"]


@on_manual_clock
async def test_a_remake_that_raises_anything_is_a_failed_attempt() -> None:
    fresh = Watched()

    def remake() -> Backend:
        if state.made == 1:
            raise OSError("the file is being replaced")
        return fresh

    async with failing(remake) as state:
        await state.attempt(PAUSES_S[0])
        await state.attempt(PAUSES_S[1])
        await turn_until(lambda: state.engine.ready)
        assert await state.code() is None


@on_manual_clock
async def test_a_model_that_fails_again_after_its_reload_is_reloaded_again() -> None:
    second, third = Watched(), Watched()
    second.before_run = lose_the_device
    async with failing(lambda: second if state.made == 1 else third) as state:
        await state.attempt(PAUSES_S[0])
        await turn_until(lambda: state.engine.ready)
        assert await state.code() is Code.INTERNAL
        await state.attempt(PAUSES_S[0])
        await turn_until(lambda: state.engine.ready)
        assert await state.code() is None


@on_manual_clock
async def test_another_model_serves_on_while_one_reloads() -> None:
    fresh = Watched()
    async with failing(lambda: fresh) as state:
        await state.engine.load(Watched("other"))
        assert (await state.engine.infer(make_request(1, model="other"))).model == "other"
        assert not state.engine.ready


@pytest.mark.parametrize("call", ["swap", "unload"])
@on_manual_clock
async def test_what_is_reloaded_for_nobody_is_closed(call: str) -> None:
    fresh, other = Watched(), Watched()
    fresh.held.clear()
    async with failing(lambda: fresh) as state:
        await state.attempt(PAUSES_S[0])
        await fresh.until("load")
        await (state.engine.swap(other) if call == "swap" else state.engine.unload("fake"))
        fresh.held.set()
        await fresh.until("close")
        assert state.engine.live
        assert await state.code() is (None if call == "swap" else Code.MODEL_NOT_FOUND)
        assert len(fresh.batches) == 0


@on_manual_clock
async def test_closing_the_engine_ends_a_reload_in_its_pause() -> None:
    async with failing(cannot_load()) as state:
        await state.pausing()
        await state.engine.close(grace_s=1.0)
        assert clock().timers() == []
        assert state.made == 0


@pytest.mark.parametrize("reason", ["no remake", "report", "draining"])
@on_manual_clock
async def test_a_failed_model_is_left_failed(reason: str) -> None:
    options = SchedulerOptions(on_failure="report" if reason == "report" else "reload")
    engine, backend = Engine(options, Recorder()), Watched()
    backend.before_run = lose_the_device
    made: list[FakeBackend] = []
    await engine.load(backend, remake=None if reason == "no remake" else lambda: made[0])
    engine.open()
    if reason == "draining":
        engine.drain()
    with pytest.raises(ServingError):
        await engine.infer(make_request(1))
    await asyncio.sleep(0)
    assert (engine.ready, engine.live) == (False, False)
    assert clock().timers() == []
    await engine.close(grace_s=0.0)
