"""Those tests that need a cluster share one; it takes a while to start, so that all are slow."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from backends.ray_pool.backend import RayPoolBackend
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from tests.fixtures.ray_cluster import RayCluster, ray_cluster

Serve = Callable[..., AbstractAsyncContextManager[tuple[Engine, RayPoolBackend]]]


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """A head and three nodes of one CPU; a test that kills one adds another."""
    pytest.importorskip("ray", reason="needs this project's extra 'ray'")
    with ray_cluster(nodes=3) as running:
        yield running


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
