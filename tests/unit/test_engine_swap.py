"""One version of a model takes over from another while traffic flows; closing meanwhile."""

import asyncio

import pytest

from scheduler.errors import Code, LoadError, ServingError
from tests.fixtures.gates import Recorder, Watched
from tests.fixtures.manual_clock import on_manual_clock, settle, turn_until
from tests.unit.test_engine_versions import Traffic, engine_over, not_found, version_for, versions

pytestmark = pytest.mark.timeout(60)


@on_manual_clock
async def test_a_swap_under_traffic_loses_nothing_and_the_old_queue_stays_the_old_ones() -> None:
    recorder = Recorder()
    old, new = Watched(version="1"), Watched(version="2")
    async with engine_over(old, recorder=recorder) as engine:
        traffic = Traffic(engine, old)
        await traffic.arrives(1)
        await traffic.gate.began()
        await traffic.arrives(2, 3)
        new.held.clear()
        swap = asyncio.create_task(engine.swap(new))
        await new.until("load")
        await traffic.arrives(4)  # while the new one loads, the old one admits
        assert versions(engine) == ["1"]
        new.held.set()
        await turn_until(lambda: versions(engine) == ["2"])
        assert await version_for(engine) == "2"
        assert not swap.done()
        traffic.gate.open()
        assert await traffic.answered_by() == ["1"] * 4
        await swap
        assert old.calls[-1] == "close"
        assert recorder.drops == []
        assert sum(len(record.queue_s) for record in recorder.runs) == 5
        assert "1" in await not_found(engine, "1")


@on_manual_clock
async def test_requests_that_never_stop_see_no_swap_but_in_the_version_that_answers() -> None:
    recorder = Recorder()
    async with engine_over(Watched(version="0"), recorder=recorder) as engine:
        seen: list[str] = []
        swapping = True

        async def ask_on() -> None:
            while swapping:
                seen.append(await version_for(engine))

        asking = [asyncio.create_task(ask_on()) for _ in range(8)]
        for version in ("1", "2", "3"):
            await engine.swap(Watched(version=version))
        swapping = False
        await asyncio.gather(*asking)  # a refusal would be raised here
        assert await version_for(engine) == "3"
        await settle()
        assert sum(len(record.queue_s) for record in recorder.runs) == len(seen) + 1
        assert recorder.drops == []


@on_manual_clock
async def test_a_swap_may_bring_the_same_version_again() -> None:
    old, new = Watched(version="1"), Watched(version="1")
    async with engine_over(old) as engine:
        await engine.swap(new)
        assert versions(engine) == ["1"]
        await version_for(engine, "1")
        assert (len(old.batches), len(new.batches)) == (0, 1)
        assert old.calls[-1] == "close"


@on_manual_clock
async def test_a_swap_replaces_every_version_and_no_other_model() -> None:
    models = [Watched("fake", version="1"), Watched("fake", version="2"), Watched("other")]
    async with engine_over(*models) as engine:
        await engine.swap(Watched(version="3"))
        assert sorted(f"{spec.name} {spec.version}" for spec in engine.specs()) == [
            "fake 3", "other 1",
        ]  # fmt: skip


@pytest.mark.parametrize("lanes", [1, 0], ids=["raises", "has no lanes"])
@on_manual_clock
async def test_a_swap_that_fails_to_load_changes_nothing(lanes: int) -> None:
    class Broken(Watched):
        @property
        def lanes(self) -> int:
            return lanes

    old = Watched(version="1")
    async with engine_over(old) as engine:
        told: list[bool] = []
        engine.watch(lambda: told.append(engine.ready))
        with pytest.raises(LoadError):
            await engine.swap(Broken(version="2", error=LoadError("no file") if lanes else None))
        assert versions(engine) == ["1"]
        assert await version_for(engine) == "1"
        assert engine.ready
        assert told == []
        assert "close" not in old.calls


@on_manual_clock
async def test_what_the_old_version_cannot_answer_within_the_grace_of_a_swap_is_unavailable() -> (
    None
):
    old = Watched(version="1")
    async with engine_over(old) as engine:
        traffic = Traffic(engine, old)
        await traffic.arrives(1)
        await traffic.gate.began()
        await engine.swap(Watched(version="2"), grace_s=0.0)
        with pytest.raises(ServingError) as answer:
            await traffic.tasks[0]
        assert answer.value.code is Code.UNAVAILABLE
        traffic.gate.open()


@pytest.mark.parametrize("leaving", ["swap", "unload"])
@on_manual_clock
async def test_closing_answers_also_those_whom_a_version_on_its_way_out_has_admitted(
    leaving: str,
) -> None:
    old = Watched(version="1")
    async with engine_over(old) as engine:
        traffic = Traffic(engine, old)
        await traffic.arrives(1)
        step = engine.swap(Watched(version="2")) if leaving == "swap" else engine.unload("fake")
        going = asyncio.create_task(step)
        await turn_until(lambda: versions(engine) != ["1"])
        await engine.close(grace_s=0.0)
        answered = traffic.tasks[0].done()
        traffic.gate.open()
        await asyncio.gather(going, *traffic.tasks, return_exceptions=True)
        assert answered


@on_manual_clock
async def test_a_model_that_has_loaded_only_after_the_engine_closed_is_closed_too() -> None:
    async with engine_over(Watched(version="1")) as engine:
        late = Watched(version="2")
        late.held.clear()
        loading = asyncio.create_task(engine.load(late))
        await late.until("load")
        await engine.close(grace_s=0.0)
        late.held.set()
        await asyncio.gather(loading, return_exceptions=True)
        served = versions(engine)
        for _ in range(len(served)):
            await engine.unload("fake")
        assert served == ["1"]
