"""Deltas reach a served model in order, once, whole or not at all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.backend import TableRows
from scheduler.deltas import Delta
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.observer import Observer, Updated
from scheduler.options import SchedulerOptions
from tests.fixtures.updatable import DIM, TABLES, UpdatableFake, delta
from transports.statistics import Statistics
from transports.updates import apply, roll_back


class Heard(Observer):
    """Keeps what was reported of updates."""

    def __init__(self) -> None:
        self.updates: list[Updated] = []

    def updated(self, record: Updated) -> None:
        self.updates.append(record)


@asynccontextmanager
async def served(*backends: FakeBackend) -> AsyncIterator[tuple[Engine, Heard]]:
    heard = Heard()
    engine = Engine(SchedulerOptions(), Statistics(heard))
    for backend in backends:
        await engine.load(backend)
    engine.open()
    try:
        yield engine, heard
    finally:
        await engine.close(0.0)


async def refusal(engine: Engine, wrong: Delta) -> ServingError:
    with pytest.raises(ServingError) as caught:
        await apply(engine, wrong)
    return caught.value


async def test_a_delta_replaces_its_rows_and_no_others() -> None:
    backend = UpdatableFake()
    async with served(backend) as (engine, heard):
        done = await apply(engine, delta(rows=(7, 3)))
        assert (done.outcome, done.sequence, done.rows) == ("applied", 1, 2)
        assert np.flatnonzero(backend.stored[TABLES[0]].all(axis=1)).tolist() == [3, 7]
        assert not backend.stored[TABLES[1]].any()
        assert [(one.outcome, one.rows, one.sequence) for one in heard.updates] == [
            ("applied", 2, 1)
        ]


async def test_the_same_delta_twice_is_applied_once() -> None:
    backend = UpdatableFake()
    async with served(backend) as (engine, heard):
        await apply(engine, delta("a", value=1.0, base=0))
        await apply(engine, delta("b", value=2.0, base=1))
        again = await apply(engine, delta("a", value=1.0, base=0))
        assert (again.outcome, again.sequence) == ("already_applied", 1)
        assert backend.stored[TABLES[0]].max() == 2.0
        assert engine.updates("").sequence == 2
        assert heard.updates[-1].outcome == "already_applied"
        assert heard.updates[-1].rows == 0


@pytest.mark.parametrize("base", [1, 7])
async def test_a_delta_for_another_base_is_refused(base: int) -> None:
    async with served(UpdatableFake()) as (engine, heard):
        error = await refusal(engine, delta(base=base))
        assert error.detail.startswith(f"base is {base}; 'fake', version '1', is at 0")
        assert heard.updates[-1].outcome == "refused"


async def test_a_delta_for_another_version_is_refused() -> None:
    async with served(UpdatableFake()) as (engine, _):
        error = await refusal(engine, delta(model="fake", version="2"))
        assert error.code is Code.MODEL_NOT_FOUND
        assert "no model 'fake' of version '2'" in error.detail


def table(name: str, rows: list[int], values: object) -> TableRows:
    return TableRows(name, np.asarray(rows, np.int64), np.asarray(values, np.float32))


GOOD = table("cat_0", [1], [[5.0, 5.0]])
BAD = {
    "an unknown table": (table("cat_9", [1], [[1, 1]]), "no table 'cat_9'; there are cat_0, cat_1"),
    "a row too many": (table("cat_1", [1, 10], [[1, 1]] * 2), "row 10; it has 10 rows (0..9)"),
    "a negative row": (table("cat_1", [-1], [[1, 1]]), "row -1; it has 10 rows"),
    "a wrong width": (table("cat_1", [1], [[1, 1, 1]]), "shape (1, 3) for 1 rows of 2 values"),
    "NaN": (table("cat_1", [4, 5], [[1, 1], [1, np.nan]]), "row 5 has NaN or infinity"),
    "infinity": (table("cat_1", [4], [[-np.inf, 1]]), "row 4 has NaN or infinity"),
    "a row twice": (table("cat_1", [4, 3, 4], [[1, 1]] * 3), "row 4 is given more than once"),
    "a table twice": (table("cat_0", [2], [[1, 1]]), "table 'cat_0' is given 2 times"),
}


@pytest.mark.parametrize(("bad", "said"), BAD.values(), ids=BAD)
async def test_of_a_delta_that_is_wrong_anywhere_nothing_is_applied(
    bad: TableRows, said: str
) -> None:
    backend = UpdatableFake()
    async with served(backend) as (engine, _):
        error = await refusal(engine, Delta("x", (GOOD, bad)))
        assert error.code is Code.INVALID_REQUEST
        assert said in error.detail
        assert not any(rows.any() for rows in backend.stored.values())
        assert engine.updates("").sequence == 0
        assert (await apply(engine, Delta("x", (GOOD,)))).outcome == "applied"


async def test_numbers_whose_sum_overflows_are_no_infinity() -> None:
    most = float(np.finfo(np.float32).max)
    backend = UpdatableFake()
    async with served(backend) as (engine, _):
        await apply(engine, delta(rows=(1,), value=most))
        assert backend.stored[TABLES[0]][1].tolist() == [most] * DIM


@pytest.mark.parametrize("name", ["", "x" * 201])
async def test_a_delta_without_a_proper_name_is_refused(name: str) -> None:
    async with served(UpdatableFake()) as (engine, _):
        assert "characters; 1 to 200" in (await refusal(engine, delta(name))).detail


async def test_two_deltas_at_once_take_turns() -> None:
    backend = UpdatableFake()
    async with served(backend) as (engine, _):
        with backend.held():
            both = [asyncio.create_task(apply(engine, delta(n, base=0))) for n in ("a", "b")]
            await asyncio.to_thread(backend.writing.wait, 30)
        first, second = await asyncio.gather(*both, return_exceptions=True)
        assert not isinstance(first, BaseException)
        assert first.sequence == 1
        assert isinstance(second, ServingError)
        assert "base is 0" in second.detail


async def test_a_delta_goes_on_when_its_client_leaves() -> None:
    backend = UpdatableFake()
    async with served(backend) as (engine, _):
        with backend.held():
            asked = asyncio.create_task(apply(engine, delta("a")))
            await asyncio.to_thread(backend.writing.wait, 30)
            asked.cancel()
            await asyncio.wait([asked])
        assert (await apply(engine, delta("b"))).sequence == 2
        assert (await apply(engine, delta("a"))).outcome == "already_applied"


async def test_a_backend_s_fault_is_an_error_of_ours_and_no_delta_is_counted() -> None:
    backend = UpdatableFake()
    backend.fault = SystemExit(3)
    async with served(backend) as (engine, heard):
        assert (await refusal(engine, delta())).code is Code.INTERNAL
        assert heard.updates[-1].outcome == "failed"
        assert (await apply(engine, delta())).sequence == 1


async def test_a_delta_in_the_middle_of_a_swap_does_not_pass_for_applied() -> None:
    old, new = UpdatableFake(), UpdatableFake()
    async with served(old) as (engine, _):
        with old.held():
            asked = asyncio.create_task(apply(engine, delta()))
            await asyncio.to_thread(old.writing.wait, 30)
            await engine.swap(new)
        with pytest.raises(ServingError, match="was replaced by a new load") as caught:
            await asked
        assert caught.value.code is Code.UNAVAILABLE
        assert engine.updates("").sequence == 0
        assert (await apply(engine, delta())).outcome == "applied"
        assert new.stored[TABLES[0]].any()


@pytest.mark.parametrize("fault", [None, RuntimeError("close() has been called")])
async def test_a_delta_to_a_model_that_is_unloaded_meanwhile_is_not_found(
    fault: BaseException | None,
) -> None:
    backend = UpdatableFake()
    backend.fault = fault
    async with served(backend, UpdatableFake("other")) as (engine, _):
        with backend.held():
            asked = asyncio.create_task(apply(engine, delta(model="fake")))
            await asyncio.to_thread(backend.writing.wait, 30)
            await engine.unload("fake")
        with pytest.raises(ServingError, match="no model 'fake'") as caught:
            await asked
        assert caught.value.code is Code.MODEL_NOT_FOUND
        assert (await apply(engine, delta(model="other"))).outcome == "applied"


async def test_a_rollback_restores_what_was_loaded_and_forgets_the_deltas() -> None:
    backend = UpdatableFake()
    async with served(backend) as (engine, heard):
        await apply(engine, delta("a"))
        await apply(engine, delta("b", rows=(3,)))
        done = await roll_back(engine, "", "")
        assert (done.rows, done.deltas, engine.updates("").sequence) == (3, 2, 0)
        assert not backend.stored[TABLES[0]].any()
        assert heard.updates[-1].outcome == "rolled_back"
        assert (await apply(engine, delta("a", base=0))).outcome == "applied"


async def test_a_backend_that_takes_no_updates_says_so() -> None:
    async with served(FakeBackend(FakeOptions())) as (engine, _):
        for asking in (apply(engine, delta()), roll_back(engine, "", "")):
            with pytest.raises(ServingError, match="takes no embedding updates") as caught:
                await asking
            assert caught.value.code is Code.UNSUPPORTED
