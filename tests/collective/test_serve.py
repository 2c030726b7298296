"""``narsil serve`` with the transport: whole processes, from start to stop."""

import re
import select
from os import pidfd_open
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.e2e.process import Process, narsil_serve
from tests.fixtures.gates import make_request
from transports.collective.client import CollectiveClient

pytestmark = pytest.mark.slow


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def collective_url(process: Process) -> str:
    """Return where a server is to be met."""
    found = re.search(r"^  collective +(\S+)", process.banner, re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_server_has_no_pytorch_and_takes_its_processes_with_it(tmp_path: Path) -> None:
    serving = narsil_serve(
        tmp_path,
        ["--backend", "fake", "--server-drain-delay-s", "0"],
        transports=("http", "collective"),
    )
    with serving as process, CollectiveClient(collective_url(process)) as client:
        request = make_request(4)
        scores = client.predict(request.inputs)["default"]
        assert "libtorch" not in Path(f"/proc/{process.popen.pid}/maps").read_text()
        (nursery,) = _children(process.popen.pid)
        family = [pidfd_open(pid) for pid in (nursery, *_children(nursery))]
        assert len(family) == 2
        process.terminate()
        code, log = process.wait()
        assert (code, "Traceback" in log) == (0, False), log
        for each in family:
            assert select.select([each], [], [], 30)[0], "a process of the transport lives on"
    assert scores.shape == (4,)


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
