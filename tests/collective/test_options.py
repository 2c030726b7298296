"""What can be set, and what must be there for it."""

from pathlib import Path
from typing import Any

import pytest

from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from transports.collective.options import CollectiveOptions
from transports.collective.server import CollectiveTransport
from transports.collective.uccl import plugin_path


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"backend": "mpi"}, "backend must be gloo or nccl, got 'mpi'"),
        ({"nccl_plugin": "ucx"}, "nccl_plugin must be uccl or empty, got 'ucx'"),
        ({"nccl_plugin": "uccl"}, "nccl_plugin uccl needs backend nccl"),
        ({"port": 65536}, "port must be 0 to 65535, got 65536"),
        ({"max_connections": 0}, "max_connections must be 1 to 65535, got 0"),
        ({"max_message_bytes": 0}, "max_message_bytes must be 1 to 1099511627776, got 0"),
        (
            {"max_buffered_bytes": 5, "max_message_bytes": 9},
            "max_buffered_bytes must be 9 to 1099511627776, got 5",
        ),
        (
            {"transfer_timeout_s": float("nan")},
            "transfer_timeout_s must be 0.001 to 86400, got nan",
        ),
        ({"connect_timeout_s": 0.0}, "connect_timeout_s must be 0.001 to 86400, got 0.0"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError) as refused:
        CollectiveOptions(**options)
    assert str(refused.value) == why


@pytest.fixture
def uccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that has the plug-in, as UCCL's does, and must not be imported."""
    package = tmp_path / "site" / "uccl"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('it was imported')")
    plugin = package / "lib" / "libnccl-net-uccl.so"
    plugin.touch()
    monkeypatch.syspath_prepend(str(package.parent))
    return plugin


def test_uccl_s_plug_in_is_found_in_its_package(uccl: Path, tmp_path: Path) -> None:
    (tmp_path / "infiniband" / "mlx5_0").mkdir(parents=True)
    assert plugin_path(tmp_path / "infiniband") == str(uccl)


def test_uccl_without_an_rdma_device_is_refused(uccl: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for devices in (tmp_path / "none", tmp_path / "empty"):
        with pytest.raises(OSError, match="uccl: this machine has no RDMA device"):
            plugin_path(devices)


def test_uccl_on_amazon_s_adapters_is_refused_with_the_way_that_works(
    uccl: Path, tmp_path: Path
) -> None:
    (tmp_path / "infiniband" / "rdmap16s27").mkdir(parents=True)
    with pytest.raises(OSError, match="EFA adapters need UCCL's NCCL preloaded"):
        plugin_path(tmp_path / "infiniband")


def test_a_build_of_uccl_without_the_plug_in_is_refused(uccl: Path, tmp_path: Path) -> None:
    uccl.unlink()
    with pytest.raises(OSError, match=r"has no lib/libnccl-net-uccl\.so"):
        plugin_path(tmp_path)


async def test_uccl_that_is_not_installed_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if "uccl" not in path])
    options = CollectiveOptions(port=0, backend="nccl", nccl_plugin="uccl")
    with pytest.raises(OSError, match="the package uccl is not installed: pip install uccl"):
        await CollectiveTransport(options).start(Engine(SchedulerOptions(), Observer()))
