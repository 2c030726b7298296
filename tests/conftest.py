"""Fixtures that every suite may use."""

from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fixtures.artifacts import golden, small_artifact, small_backend
from tests.fixtures.behind_front_ends import MakeFrontEnds, make_front_ends
from tests.fixtures.native import kernel_cache, library, native_backend
from tests.fixtures.onnx import onnx_backend, onnx_folder
from tests.fixtures.ray_cluster import cluster, ray_backend

__all__ = [
    "certificates",
    "cluster",
    "golden",
    "kernel_cache",
    "library",
    "native_backend",
    "onnx_backend",
    "onnx_folder",
    "ray_backend",
    "small_artifact",
    "small_backend",
]


def pytest_configure() -> None:
    """Let an example take its time: shared CPUs stop for longer than Hypothesis allows."""
    settings.register_profile("shared CPUs", deadline=None)
    settings.load_profile("shared CPUs")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of our own suites."""
    parser.addoption(
        "--front-ends", type=int, default=0, help="contract suite: transports in so many processes"
    )
    parser.addoption("--write-parity", action="store_true", help="write docs/parity.md")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's development certificate lives."""
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="session")
def front_ends(request: pytest.FixtureRequest, certificates: Path) -> MakeFrontEnds:
    """What makes the processes that transports run in, if that is asked for."""
    return partial(make_front_ends, int(request.config.getoption("--front-ends")), certificates)
