"""Embedding updates over replicas: each has them, also those that come later."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from backends.dlrm.live import PAUSE_ROWS
from backends.native_dlrm.backend import NativeDlrmBackend
from backends.ray_pool.backend import RayPoolBackend
from scheduler.backend import TableRows
from scheduler.deltas import Delta
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.types import Array, Batch, InferRequest
from tests.fixtures.native import load_native
from tests.fixtures.requests import random_request
from tests.ray_pool.conftest import Serve
from transports.updates import apply, roll_back

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def local(small_artifact: Path, kernel_cache: Path) -> Iterator[NativeDlrmBackend]:
    """The same model in this process, which gets the same updates."""
    backend = load_native(small_artifact, kernel_cache, lanes=1)
    yield backend
    backend.close()


def options(artifact: Path, cache: Path, **more: object) -> dict[str, object]:
    """Return the options of two replicas of ``artifact``."""
    settings = ("max_batch_rows=128", f"cache_dir={cache}")
    return {
        "inner": "native_dlrm", "path": str(artifact), "min_replicas": 2,
        "inner_options": settings, **more,
    }  # fmt: skip


WHOLE: dict[str, object] = {}
BY_ROWS = {"shard": "tables", "plan": "row_wise", "min_replicas": 1}
BY_DENSE_ACTOR = {"shard": "tables", "plan": "row_wise", "dense": "actor", "min_replicas": 1}


def new_rows(
    backend: NativeDlrmBackend, name: str, value: float, most_rows: int = 1 << 30
) -> Delta:
    """Return a delta that fills every table's first rows with ``value``, ``most_rows`` in all."""
    specs = backend.update_tables()
    tables = []
    for each in specs:
        count = min(each.rows, most_rows // len(specs))
        values = np.full((count, each.dim), value, "f4")
        tables.append(TableRows(each.name, np.arange(count), values))
    return Delta(name, tuple(tables))


def score(backend: NativeDlrmBackend, request: InferRequest) -> Array:
    """Return the scores in this process."""
    (scores,) = backend.prepare(Batch((request,)))().values()
    return scores


def same(ours: Array, theirs: Array) -> bool:
    """Return whether two processes have computed the same."""
    return bool(np.abs(np.subtract(ours, theirs, dtype=np.float64)).max() <= 2e-6)


async def all_answer(engine: Engine, local: NativeDlrmBackend) -> bool:
    """Ask so much at once that every replica has some of it."""
    requests = [random_request(engine.spec(""), 20, seed=seed) for seed in range(40)]
    answers = await asyncio.gather(*map(engine.infer, requests))
    return all(
        same(answer.outputs["default"], score(local, request))
        for request, answer in zip(requests, answers, strict=True)
    )


async def until(holds: Callable[[], bool]) -> None:
    """Wait; a pool has no event to wait for."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def applied_at_last(engine: Engine, delta: Delta) -> None:
    """Apply ``delta``, as a client does that is told to come back: shards may have no second."""
    while True:
        try:
            await apply(engine, delta)
        except ServingError as error:
            if error.code is not Code.UNAVAILABLE:
                raise
            await asyncio.sleep(0.1)
        else:
            return


async def killed(engine: Engine, backend: RayPoolBackend, local: NativeDlrmBackend) -> None:
    """Kill one actor, and ask until there are as many again: every answer has the updates."""
    count, victim = len(backend.processes()), min(backend.processes())
    os.kill(victim, signal.SIGKILL)
    while victim in backend.processes() or len(backend.processes()) < count:
        assert await all_answer(engine, local)


@pytest.mark.parametrize("kind", [WHOLE, BY_ROWS, BY_DENSE_ACTOR], ids=str)
async def test_every_actor_has_an_update_also_one_that_was_made_anew_and_a_rollback_undoes_it(
    serve: Serve, small_artifact: Path, kernel_cache: Path, local: NativeDlrmBackend,
    kind: dict[str, object],
) -> None:  # fmt: skip
    async with serve(**options(small_artifact, kernel_cache, **kind)) as (engine, backend):
        assert backend.update_tables() == local.update_tables()
        before = score(local, random_request(engine.spec(""), 20, seed=0))
        for number, value in enumerate((0.3, -0.2)):
            delta = new_rows(local, f"delta {number}", value)
            local.prepare_update(delta.tables)()
            assert (await apply(engine, delta)).outcome == "applied"
            assert await all_answer(engine, local)
        assert not same(before, score(local, random_request(engine.spec(""), 20, seed=0)))
        await killed(engine, backend, local)
        assert await all_answer(engine, local)
        changed = local.roll_back()
        assert (await roll_back(engine, "", "")).rows == changed
        assert await all_answer(engine, local)
        await killed(engine, backend, local)
        assert await all_answer(engine, local)


@pytest.mark.parametrize(
    "kind", [WHOLE, BY_ROWS, BY_ROWS | {"min_replicas": 2, "cpus": 0.5}], ids=str
)
async def test_no_request_sees_rows_as_they_were_after_another_has_seen_them_as_they_are(
    serve: Serve, small_artifact: Path, kernel_cache: Path, local: NativeDlrmBackend,
    kind: dict[str, object],
) -> None:  # fmt: skip
    async with serve(**options(small_artifact, kernel_cache, **kind)) as (engine, backend):
        request = random_request(engine.spec(""), 30, seed=5)
        states = [score(local, request)]
        # No more than what is written to all tables in one pause: a batch that is under way in a
        # replica may see the tables of larger deltas change one by one (docs/updates.md).
        deltas = [
            new_rows(local, f"{number}", 0.1 * (number + 1), PAUSE_ROWS) for number in range(4)
        ]
        for delta in deltas:
            local.prepare_update(delta.tables)()
            states.append(score(local, request))
        local.roll_back()
        seen: list[tuple[float, float, int]] = []
        wanted = True

        async def ask() -> None:
            while wanted:
                began_s = time.perf_counter()
                (scores,) = (await engine.infer(request)).outputs.values()
                (state,) = [at for at, each in enumerate(states) if same(scores, each)]
                seen.append((began_s, time.perf_counter(), state))

        callers = [asyncio.create_task(ask()) for _ in range(6)]
        for number, delta in enumerate(deltas):
            if number == 2:
                os.kill(min(backend.processes()), signal.SIGKILL)
            await applied_at_last(engine, delta)
            applied, count = time.perf_counter(), len(seen)
            await until(lambda count=count: len(seen) > count + 20)  # type: ignore[misc]
            assert all(state > number for began_s, _, state in seen[count:] if began_s >= applied)
        wanted = False
        await asyncio.gather(*callers)
    newest, ended = 0, sorted(seen, key=lambda each: each[1])
    for began_s, _, state in sorted(seen):
        while ended and ended[0][1] <= began_s:
            newest = max(newest, ended.pop(0)[2])
        assert state >= newest


async def test_a_shard_that_dies_before_it_writes_has_the_update_once_it_is_back(
    serve: Serve, small_artifact: Path, kernel_cache: Path, local: NativeDlrmBackend
) -> None:
    async with serve(**options(small_artifact, kernel_cache, **BY_ROWS)) as (engine, backend):
        delta = new_rows(local, "one", 0.4)
        write = backend.prepare_update(delta.tables)
        os.kill(min(backend.processes()), signal.SIGKILL)
        await asyncio.to_thread(write)
        local.prepare_update(delta.tables)()
        assert await all_answer(engine, local)
        assert await asyncio.to_thread(backend.roll_back) == local.roll_back()
        assert await all_answer(engine, local)


async def test_an_update_that_one_shard_cannot_have_changes_no_other(
    serve: Serve, small_artifact: Path, kernel_cache: Path, local: NativeDlrmBackend
) -> None:
    async with serve(**options(small_artifact, kernel_cache, **BY_ROWS)) as (engine, backend):
        (table, *_), request = local.update_tables(), random_request(engine.spec(""), 20, seed=1)
        values = np.full((table.rows, table.dim), 0.5, np.float32)
        values[-1] = np.float32(3e38)
        every = TableRows(table.name, np.arange(table.rows), values)
        with pytest.raises(ServingError, match=rf"table '{table.name}, of which row 0 is row \d+'"):
            await apply(engine, Delta("large", (every,)))
        assert same((await engine.infer(request)).outputs["default"], score(local, request))
        assert backend.roll_back() == 0


async def test_values_that_no_replica_can_store_change_nothing(
    serve: Serve, small_artifact: Path, kernel_cache: Path, local: NativeDlrmBackend
) -> None:
    async with serve(**options(small_artifact, kernel_cache, min_replicas=1)) as (engine, _):
        table, *_ = local.update_tables()
        wide = TableRows(table.name, np.arange(2), np.zeros((2, table.dim + 1), np.float32))
        with pytest.raises(ServingError) as caught:
            await apply(engine, Delta("wide", (wide,)))
        assert caught.value.code is Code.INVALID_REQUEST
        assert engine.updates("").sequence == 0
        assert await all_answer(engine, local)
