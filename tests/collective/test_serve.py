"""``narsil serve`` with the transport: whole processes, from start to stop."""

import contextlib
import os
import re
import select
import subprocess
import sys
from os import pidfd_open
from pathlib import Path

import pytest
import torch.distributed as dist

from loadtest.lab import collective
from scheduler.errors import Code, ServingError
from tests.collective.serving import ROOT
from tests.e2e.process import Process, narsil_serve
from tests.fixtures.gates import make_request
from transports.collective.client import CollectiveClient

pytestmark = pytest.mark.slow


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _family(process: Process) -> list[int]:
    """Return what tells of the end of the nursery and of a caller's process."""
    (nursery,) = _children(process.popen.pid)
    (carrier,) = _children(nursery)
    return [pidfd_open(nursery), pidfd_open(carrier)]


def _check_gone(family: list[int]) -> None:
    for each in family:
        assert select.select([each], [], [], 30)[0], "a process of the transport lives on"
        os.close(each)


def collective_url(process: Process) -> str:
    """Return where a server is to be met."""
    found = re.search(r"^  collective +(\S+)", process.banner, re.MULTILINE)
    assert found is not None
    return found[1]


def _served(folder: Path, *more: str) -> "contextlib.AbstractContextManager[Process]":
    arguments = ["--backend", "fake", "--server-drain-delay-s", "0", *more]
    return narsil_serve(folder, arguments, transports=("http", "collective"))


def test_the_server_has_no_pytorch_and_takes_its_processes_with_it(tmp_path: Path) -> None:
    with _served(tmp_path) as process, CollectiveClient(collective_url(process)) as client:
        assert client.predict(make_request(4).inputs)["default"].shape == (4,)
        assert "libtorch" not in Path(f"/proc/{process.popen.pid}/maps").read_text()
        family = _family(process)
        process.terminate()
        code, log = process.wait()
        assert (code, "Traceback" in log) == (0, False), log
        _check_gone(family)


def test_a_server_that_is_killed_takes_its_processes_with_it(tmp_path: Path) -> None:
    with _served(tmp_path) as process, CollectiveClient(collective_url(process)) as client:
        family = _family(process)
        process.popen.kill()
        _check_gone(family)
        with pytest.raises(ServingError) as refused:
            client.predict(make_request(4).inputs)
    assert refused.value.code is Code.UNAVAILABLE


def test_beside_front_ends_it_stays_with_the_engine(tmp_path: Path) -> None:
    with _served(tmp_path, "--frontends", "1") as process:
        with CollectiveClient(collective_url(process)) as client:
            assert client.predict(make_request(4).inputs)["default"].shape == (4,)
        process.terminate()
        code, log = process.wait()
    assert (code, "Traceback" in log) == (0, False), log


def test_a_caller_s_process_may_grow_only_so_much(tmp_path: Path) -> None:
    with _served(tmp_path) as process, CollectiveClient(collective_url(process)):
        (nursery,) = _children(process.popen.pid)
        (carrier,) = _children(nursery)
        limits = Path(f"/proc/{carrier}/limits").read_text()
        limit_bytes = int(re.findall(r"Max data size +(\d+)", limits)[0])
    assert limit_bytes < 1 << 30


@pytest.mark.skipif(dist.is_nccl_available(), reason="this PyTorch has NCCL")
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--collective-backend", "nccl"], "collective: this PyTorch has no nccl"),
        (
            ["--collective-backend", "nccl", "--collective-nccl-plugin", "uccl"],
            "collective: nccl_plugin uccl: the package uccl is not installed",
        ),
    ],
)
def test_what_is_missing_is_said_at_the_start(
    arguments: list[str], why: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(AssertionError, match=why),
        narsil_serve(
            tmp_path, ["--backend", "fake", *arguments], transports=("http", "collective")
        ),
    ):
        pass


_ALONE = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {forbidden!r}:
            raise ImportError(f"the client imports {{name}}")

sys.meta_path.insert(0, Nothing())
import transports.collective.client
"""
_SERVER_S = ("aioquic", "cryptography", "fastapi", "fbgemm_gpu", "google", "grpc", "httptools")
_MORE = ("httpx", "ngh2", "orjson", "prometheus_client", "rich", "starlette", "uvicorn", "uvloop")


def test_the_client_is_imported_without_the_server_s_packages() -> None:
    code = _ALONE.format(forbidden={*_SERVER_S, *_MORE})
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_lab_measures_it_beside_grpc(capsys: pytest.CaptureFixture[str]) -> None:
    collective.main(["--rows", "3", "--rounds", "1", "--seconds", "0.05"])
    printed = capsys.readouterr().out
    assert "| 3 | 0.78 | grpc |" in printed
    assert "| 3 | 0.78 | collective |" in printed
    assert "| 3 | 0.78 | grpc, shared memory |" in printed
