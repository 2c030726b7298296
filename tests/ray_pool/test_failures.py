"""Replicas and machines that die while requests flow."""

import asyncio
import os
import signal
from collections.abc import Callable

import numpy as np
import pytest

from backends.fake import FakeBackend
from loadtest.lab.ray_cluster import RayCluster
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from tests.fixtures.requests import random_request
from tests.ray_pool.conftest import Serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

_FAKE = ("lanes=1", "compute_s=0.01", "max_batch_rows=8")


class Flow:
    """Requests that follow each other for as long as they are wanted; every answer is checked."""

    def __init__(self, engine: Engine, callers: int = 8) -> None:
        self._engine = engine
        self._local = FakeBackend(FakeBackend.Options())
        self._wanted = True
        self.answered = 0
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(callers)]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds()``, and for more answers after that; none may have failed."""
        while not holds():
            await self._some(1)
        await self._some(50)

    async def stop(self) -> None:
        """Wait for the last answers."""
        self._wanted = False
        await asyncio.gather(*self._tasks)

    async def _some(self, count: int) -> None:
        enough = self.answered + count
        while self.answered < enough:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.005)

    async def _ask(self, number: int) -> None:
        seed = number
        while self._wanted:
            request = random_request(self._engine.spec(""), 1 + seed % 4, seed=seed)
            answer = await self._engine.infer(request)
            assert np.array_equal(answer.outputs["default"], self._local.score(request))
            self.answered += 1
            seed += 100


async def test_a_killed_replica_loses_no_request_and_comes_back(serve: Serve) -> None:
    async with serve(min_replicas=2, inner_options=_FAKE) as (engine, backend):
        before = backend.processes()
        assert len(before) == 2
        flow = Flow(engine)
        await flow.until(lambda: True)
        os.kill(min(before), signal.SIGKILL)
        # Another may be there before this looks again: what is gone stays gone, lanes come back.
        await flow.until(lambda: min(before) not in backend.processes())
        await flow.until(lambda: backend.lanes_for(0) == 4)
        assert len(backend.processes()) == 2
        await flow.stop()


async def test_a_killed_node_under_load_loses_no_request(serve: Serve, cluster: RayCluster) -> None:
    victim = cluster.add_node()
    async with serve(min_replicas=4, inner_options=_FAKE) as (engine, backend):
        assert victim.node_id in backend.processes().values()
        flow = Flow(engine)
        await flow.until(lambda: True)
        killing = asyncio.get_running_loop().run_in_executor(None, cluster.kill_node, victim)
        await flow.until(lambda: backend.lanes_for(0) == 6)
        await killing
        cluster.add_node()
        await flow.until(lambda: backend.lanes_for(0) == 8)
        assert len(backend.processes()) == 4
        await flow.stop()


async def test_nothing_of_a_batch_stays_in_the_cluster_or_is_held_by_the_gateway(
    serve: Serve,
) -> None:
    import ray  # noqa: PLC0415

    large = ("dense_features=300", "max_batch_rows=1000")  # more than the store holds, all together
    async with serve(inner_options=large) as (engine, _):
        core = ray._private.worker.global_worker.core_worker
        local = FakeBackend(FakeBackend.Options(dense_features=300))
        request = random_request(engine.spec(""), 1000, seed=1)
        await engine.infer(request)
        held = len(core.get_all_reference_counts())
        for _ in range(120):
            answer = await engine.infer(request)
            assert np.array_equal(answer.outputs["default"], local.score(request))
        del answer
        assert len(core.get_all_reference_counts()) <= held


async def test_without_any_replica_requests_wait_and_are_answered_once_one_is_back(
    serve: Serve,
) -> None:
    async with serve(inner_options=_FAKE) as (engine, backend):
        flow = Flow(engine, callers=3)
        await flow.until(lambda: True)
        os.kill(min(backend.processes()), signal.SIGKILL)
        await flow.until(lambda: bool(backend.processes()))
        await flow.stop()


async def _is_answered(engine: Engine) -> bool:
    try:
        await engine.infer(random_request(engine.spec(""), 2, seed=1))
    except ServingError:
        return False
    return True


async def test_a_pool_without_hope_refuses_and_serves_again_when_there_is_room(
    serve: Serve, cluster: RayCluster
) -> None:
    extra = cluster.add_node(cpus=8)
    options = {"cpus": 5.0, "patience_s": 1.0, "call_timeout_s": 0.5, "inner_options": _FAKE}
    async with serve(**options) as (engine, backend):
        request = random_request(engine.spec(""), 2, seed=1)
        await engine.infer(request)
        await asyncio.get_running_loop().run_in_executor(None, cluster.kill_node, extra)
        # A worker outlives its node by a moment.
        while await _is_answered(engine):
            pass
        for _ in range(3):
            with pytest.raises(ServingError) as caught:
                await engine.infer(request)
            assert caught.value.code is Code.UNAVAILABLE
        assert engine.ready
        cluster.add_node(cpus=8)
        while not backend.processes():  # noqa: ASYNC110  # the pool has no event to wait for
            await asyncio.sleep(0.05)
        await engine.infer(request)


def _left() -> tuple[set[str], float]:
    """Return the actors that are there, or are to be, and the CPUs that nobody takes."""
    import ray  # noqa: PLC0415
    from ray._private.state import actors  # noqa: PLC0415  # the public one needs the dashboard

    there = {key for key, actor in actors().items() if actor["State"] != "DEAD"}
    return there, ray.available_resources().get("CPU", 0.0)


@pytest.mark.parametrize("pause_s", [0.0, 0.3, 1.2])
async def test_nothing_of_a_pool_stays_in_the_cluster_though_it_is_closed_while_replicas_restart(
    serve: Serve, pause_s: float
) -> None:
    async with serve(inner_options=_FAKE):
        before = _left()
        async with serve(min_replicas=2, inner_options=_FAKE) as (_, backend):
            assert len(_left()[0]) == len(before[0]) + 2
            for pid in backend.processes():
                os.kill(pid, signal.SIGKILL)
            # Any moment will do: Ray takes a second to notice, and another to start a worker.
            await asyncio.sleep(pause_s)
        while _left() != before:  # noqa: ASYNC110  # Ray has no event to wait for
            await asyncio.sleep(0.02)
