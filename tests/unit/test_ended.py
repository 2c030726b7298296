"""What is said of a process that has ended."""

import signal

import pytest

from scheduler.ended import how_ended


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-50, "was killed by signal 50"),
    ],
)
def test_a_process_that_was_killed_is_said_to_be_by_the_signal_s_name(
    returncode: int, words: str
) -> None:
    assert how_ended(returncode) == words
