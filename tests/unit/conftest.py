"""What concerns gRPC holds on every engine."""

import pytest

from tests.fixtures import grpc_calls
from transports.grpc.options import ENGINES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the modules about gRPC on each engine, except for what is about one of them."""
    module = metafunc.module.__name__.rpartition(".")[2]
    if module.startswith("test_grpc_") or module == "test_tls_grpc":
        metafunc.fixturenames.append("grpc_engine")
        metafunc.parametrize("grpc_engine", ENGINES, indirect=True)


@pytest.fixture
def grpc_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine on which ``grpc_calls`` serves."""
    engine: str = request.param
    monkeypatch.setattr(grpc_calls, "engine", engine)
    return engine
