"""Every backend, behind every wire."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from backends.fake import FakeBackend
from loadtest.lab.backends import Lent
from scheduler.backend import Backend
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest
from tests.contract.keyed import keyed, keyed_server
from tests.fixtures.behind_front_ends import MakeFrontEnds
from tests.fixtures.requests import as_json, as_protobuf
from tests.fixtures.serving import Served, serving
from tests.fixtures.wires import EVERY_WIRE, Wire, connect

__all__ = ["keyed", "keyed_server"]


@pytest.fixture
def fake() -> FakeBackend:
    """A backend that tests can hold, fail and look into."""
    return FakeBackend(FakeBackend.Options(max_batch_rows=64))


@pytest.fixture(scope="session")
def fake_backend() -> FakeBackend:
    """A fake that no test holds or fails."""
    return FakeBackend(FakeBackend.Options(max_batch_rows=64))


# Add a backend of yours: a name here and a fixture of that name, which gives it loaded.
BACKENDS = ["fake_backend", "small_backend", "native_backend", "onnx_backend", "ray_backend"]


# In the default run onnx_backend meets these tests alone: the shell is the same for all.
_SCORES = "test_scores.py"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most tests of the third backend, and all on a cluster, to the slow run."""
    for item in items:
        short = "onnx_backend" in item.name and item.path.name == _SCORES
        if ("onnx_backend" in item.name and not short) or "ray_backend" in item.name:
            item.add_marker(pytest.mark.slow)


# Starting all transports costs more than most tests: a module's tests share them, and their loop.
_shared = partial(pytest_asyncio.fixture, scope="module", loop_scope="module")


@_shared(params=BACKENDS)
async def served(
    request: pytest.FixtureRequest, certificates: Path, front_ends: MakeFrontEnds
) -> AsyncIterator[Served]:
    """Each backend behind every transport, for all tests of a module."""
    backend: Backend = request.getfixturevalue(request.param)
    options = SchedulerOptions(max_request_rows=3 * backend.spec.max_batch_rows)
    loaded = Lent(backend)
    async with serving(loaded, certificates, options, front_ends=front_ends()) as running:
        yield running


@_shared(params=EVERY_WIRE)
async def wire(request: pytest.FixtureRequest, served: Served) -> AsyncIterator[Wire]:
    """Each wire to ``served``."""
    async with connect(request.param, served) as client:
        yield client


@_shared(params=[name for name in EVERY_WIRE if name.endswith("json")])
async def json_wire(request: pytest.FixtureRequest, served: Served) -> AsyncIterator[Wire]:
    """Each wire to ``served`` that speaks JSON."""
    async with connect(request.param, served) as client:
        yield client


@_shared(params=[name for name in EVERY_WIRE if not name.endswith("json")])
async def protobuf_wire(request: pytest.FixtureRequest, served: Served) -> AsyncIterator[Wire]:
    """Each wire to ``served`` that speaks predictor.proto."""
    async with connect(request.param, served) as client:
        yield client


def encode(wire: Wire, request: InferRequest, served: Served) -> bytes:
    """Return ``request`` in the encoding of ``wire``."""
    return as_json(request, served.engine.spec("")) if wire.json else as_protobuf(request)
