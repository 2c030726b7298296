"""Requests reach a version by its label, or by the share of the requests that it has."""

from collections import Counter
from typing import Any

import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.routing import MAX_KEY_CHARS, Part, Routes, ShadowRoute
from tests.fixtures.gates import Watched, make_request
from tests.fixtures.manual_clock import on_manual_clock
from tests.unit.test_engine_versions import engine_over, not_found, version_for, versions

pytestmark = pytest.mark.timeout(60)

HALVES = (Part("stable", "1", 1), Part("canary", "2", 1))


async def by_key(engine: Engine, key: str, **fields: Any) -> str:
    """Return the version that answers a request with ``key``."""
    return (await engine.infer(make_request(1, key=key, **fields))).version


def properties(engine: Engine, version: str) -> dict[str, str]:
    """Return what the properties of ``version`` say of its routes."""
    found = engine.spec("fake", version).properties
    return {name: found[name] for name in ("labels", "share", "shadow") if name in found}


@on_manual_clock
async def test_a_version_is_reached_by_its_number_and_by_every_label_of_it() -> None:
    async with engine_over(Watched(version="1"), Watched(version="2")) as engine:
        labels = {"stable": "1", "old": "1", "canary": "2", "absent": "3"}
        engine.route("fake", Routes(labels=labels))
        asked = [await version_for(engine, name) for name in ("stable", "old", "canary", "1", "")]
        assert asked == ["1", "1", "2", "1", "2"]
        assert await not_found(engine, "absent")
        assert engine.spec("fake", "canary").version == "2"
        assert [properties(engine, each) for each in ("1", "2")] == [
            {"labels": "old,stable"}, {"labels": "canary"},
        ]  # fmt: skip
        await engine.unload("fake", "canary")
        assert versions(engine) == ["1"]
        await not_found(engine, "canary")


@on_manual_clock
async def test_what_names_no_version_goes_to_the_default_that_the_routes_name() -> None:
    async with engine_over(Watched(version="1"), Watched(version="2")) as engine:
        engine.route("fake", Routes(default="1"))
        assert await version_for(engine) == "1"
        await engine.unload("fake", "1")
        assert await version_for(engine) == "2"
        engine.route("nothing", Routes(default="1"))  # of no such model: no harm


@on_manual_clock
async def test_a_split_shares_the_requests_by_key_else_by_id_and_keeps_to_it() -> None:
    async with engine_over(Watched(version="1"), Watched(version="2")) as engine:
        engine.route("fake", Routes(split=HALVES))
        keys = [f"user-{number}" for number in range(60)]
        first = [await by_key(engine, key) for key in keys]
        assert min(Counter(first)[version] for version in ("1", "2")) > 15
        assert [await by_key(engine, key) for key in keys] == first
        assert [await by_key(engine, "", id=key) for key in keys] == first
        assert {await by_key(engine, "", id="") for _ in range(60)} == {"1", "2"}
        assert {await by_key(engine, key, version="1") for key in keys[:9]} == {"1"}
        assert properties(engine, "1") == {"share": "0.5"}


@on_manual_clock
async def test_the_share_of_a_version_that_is_not_served_goes_to_the_others() -> None:
    async with engine_over(Watched(version="1"), Watched(version="3")) as engine:
        engine.route("fake", Routes(split=HALVES))
        assert {await by_key(engine, f"{number}") for number in range(20)} == {"1"}
        assert properties(engine, "1") == {}


@on_manual_clock
async def test_a_version_that_takes_other_inputs_gets_no_share_but_answers_by_name() -> None:
    class Wider(Watched):
        def __init__(self) -> None:
            super().__init__(version="2")
            FakeBackend.__init__(self, FakeOptions(dense_features=4))

    async with engine_over(Watched(version="1"), Wider()) as engine:
        engine.route("fake", Routes(split=(Part("1", "1", 2), Part("2", "2", 1))))
        assert {await by_key(engine, f"{number}") for number in range(30)} == {"1"}
        assert engine.spec("fake", "2").inputs != engine.spec("fake").inputs


@on_manual_clock
async def test_a_key_that_is_too_long_is_refused_where_it_would_have_to_be_looked_at() -> None:
    async with engine_over(Watched(version="1"), Watched(version="2")) as engine:
        engine.route("fake", Routes(split=HALVES))
        await by_key(engine, "k" * MAX_KEY_CHARS)
        with pytest.raises(ServingError) as refusal:
            await by_key(engine, "k" * (MAX_KEY_CHARS + 1))
        assert refusal.value.code is Code.INVALID_REQUEST
        assert refusal.value.detail == "key: 1025 characters, above the limit of 1024"


@on_manual_clock
async def test_a_version_may_be_renewed_without_the_others_of_its_model() -> None:
    old, other, new = Watched(version="1"), Watched(version="2"), Watched(version="1")
    async with engine_over(old, other) as engine:
        engine.route("fake", Routes(labels={"stable": "1"}))
        await engine.swap(new, others=False)
        assert versions(engine) == ["1", "2"]
        assert old.calls[-1] == "close"
        assert "close" not in other.calls
        assert await version_for(engine, "stable") == "1"
        assert (len(old.batches), len(new.batches)) == (0, 1)
        await engine.swap(Watched(version="3"), others=False)
        assert versions(engine) == ["1", "2", "3"]


@on_manual_clock
async def test_a_swap_of_the_whole_model_forgets_its_routes() -> None:
    async with engine_over(Watched(version="1"), Watched(version="2")) as engine:
        engine.route("fake", Routes(default="1", shadow=ShadowRoute("2")))
        await engine.swap(Watched(version="3"))
        assert await version_for(engine) == "3"


async def test_an_engine_without_models_may_open_and_says_that_nothing_is_served() -> None:
    engine = Engine(SchedulerOptions(), Observer())
    engine.open()
    assert await not_found(engine, "") == "no model 'fake'; served: none"
    await engine.close(0.0)
