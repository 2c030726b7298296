"""The process that answers the probes ends with the one that asked."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backends.dlrm.manifest import MODEL_FILE
from backends.torch_dlrm.answers import ANSWERS_FILE, ask, read_answers

ASKING = "import sys, pathlib; from backends.torch_dlrm.answers import ask; ask(pathlib.Path({!r}))"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_child_ends_when_its_parent_is_killed(tmp_path: Path, number: int) -> None:
    model = tmp_path / "model.pt"
    os.mkfifo(model)  # opening it waits for a writer, and none ever comes
    with subprocess.Popen([sys.executable, "-c", ASKING.format(str(model))]) as parent:
        child = child_of(parent.pid)
        ended = os.pidfd_open(child)
        try:
            parent.send_signal(number)
            assert select.select([ended], [], [], 60.0)[0], "the child lives on"
        finally:
            os.close(ended)


def child_of(pid: int) -> int:
    """Return the only child of a process, once it has one."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    while not (children := path.read_text().split()):
        time.sleep(0.01)
    return int(children[0])


def test_a_child_answers_as_was_recorded(small_artifact: Path) -> None:
    found, recorded = ask(small_artifact / MODEL_FILE), read_answers(small_artifact / ANSWERS_FILE)
    assert recorded is not None
    assert (found.sha256, found.probes) == (recorded.sha256, recorded.probes)
