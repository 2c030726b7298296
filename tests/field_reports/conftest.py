"""A fake model behind every transport."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.fake import FakeBackend
from scheduler.options import SchedulerOptions
from tests.contract.conftest import fake
from tests.fixtures.gates import Gate
from tests.fixtures.serving import Served, serving
from tests.fixtures.wires import EVERY_WIRE, Wire, connect

__all__ = ["fake"]

# Each transport once: where the encoding matters, tests ask for ``fake_wire``.
SERVED_TRANSPORTS = ("grpc", "http-json", "http3-protobuf")
# grpcio's engine too, which in-process servers have beside the default one.
TRANSPORTS = ("grpc", "grpc-grpcio", "http-json", "http3-protobuf")


@pytest.fixture
async def served_fake(fake: FakeBackend, certificates: Path) -> AsyncIterator[Served]:
    """The fake backend behind every transport."""
    # On the loop itself a held run could never be let go.
    options = SchedulerOptions(inline_below_s=0.0)
    async with serving(fake, certificates, options) as served:
        yield served


@pytest.fixture(params=EVERY_WIRE)
async def fake_wire(request: pytest.FixtureRequest, served_fake: Served) -> AsyncIterator[Wire]:
    """Each wire to ``served_fake``."""
    async with connect(request.param, served_fake) as client:
        yield client


@pytest.fixture
async def gate(fake: FakeBackend) -> AsyncIterator[Gate]:
    """Hold every run of the fake; opened at the end."""
    fake.before_run = gate = Gate()
    yield gate
    gate.open()


@pytest.fixture(params=TRANSPORTS)
async def wire(request: pytest.FixtureRequest, served_fake: Served) -> AsyncIterator[Wire]:
    """Each transport to ``served_fake``."""
    async with connect(request.param, served_fake) as client:
        yield client
