"""A reader that has seen enough ends a command quietly."""

import os
import subprocess
import sys


def test_a_closed_pipe_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", "from app.cli import main; raise SystemExit(main(['--help']))"]
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
