"""A child process may write without end; little of it is kept, and it never waits for us."""

import sys
import threading

import pytest

from backends.torch_dlrm.bounded import run_bounded

FLOOD = """
import sys
for _ in range(64):
    sys.stdout.write("first" + "o" * 100_000)
    sys.stderr.write("e" * 100_000 + "last")
sys.exit(7)
"""


def test_the_beginning_of_stdout_and_the_end_of_stderr_are_kept() -> None:
    done = run_bounded([sys.executable, "-c", FLOOD], 60.0, 1000)
    assert done.returncode == 7
    assert done.stdout == b"first" + b"o" * 995
    assert done.stderr == b"e" * 996 + b"last"


def test_a_child_that_does_not_end_is_killed() -> None:
    threads = threading.active_count()
    with pytest.raises(TimeoutError, match=r"more than 0\.2 s"):
        run_bounded([sys.executable, "-c", "import time; time.sleep(600)"], 0.2, 1000)
    assert threading.active_count() == threads


def test_a_program_that_is_not_there_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="no-such-program"):
        run_bounded(["/no-such-program"], 1.0, 1000)
