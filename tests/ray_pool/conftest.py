"""Those tests that need a cluster share one; it takes a while to start, so that all are slow."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from backends.ray_pool.backend import RayPoolBackend
from loadtest.lab.ray_cluster import RayCluster
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions

Serve = Callable[..., AbstractAsyncContextManager[tuple[Engine, RayPoolBackend]]]


@pytest.fixture
def serve(cluster: RayCluster) -> Serve:
    """Serve a model on ``cluster`` with the options given."""

    @asynccontextmanager
    async def serve(**options: object) -> AsyncIterator[tuple[Engine, RayPoolBackend]]:
        chosen = {"address": cluster.address, "inner": "fake", **options}
        backend = RayPoolBackend(RayPoolBackend.Options(**chosen))  # type: ignore[arg-type]
        engine = Engine(SchedulerOptions(), Observer())
        await engine.load(backend)
        engine.open()
        try:
            yield engine, backend
        finally:
            await engine.close(1.0)

    return serve
