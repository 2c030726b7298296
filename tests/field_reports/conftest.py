"""A fake model behind every transport."""

from collections.abc import AsyncIterator

import pytest

from backends.fake import FakeBackend
from tests.contract.conftest import fake, fake_wire, served_fake
from tests.fixtures.gates import Gate
from tests.fixtures.serving import Served
from tests.fixtures.wires import Wire, connect

__all__ = ["fake", "fake_wire", "gate", "served_fake", "wire"]

# Each transport once: where the encoding matters, tests ask for ``fake_wire``.
SERVED_TRANSPORTS = ("grpc", "http-json", "http3-protobuf")
# grpcio's engine too, which in-process servers have beside the default one.
TRANSPORTS = ("grpc", "grpc-grpcio", "http-json", "http3-protobuf")


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
