"""A log that cannot be written costs its lines and nothing else."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.log_writer import LogWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        if _is_open(end):
            os.close(end)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def say(writer: LogWriter, text: str) -> None:
    writer.handle(logging.LogRecord("x", logging.INFO, "", 0, "%s", (text,), None))


def test_lines_are_written_whole(pipe: tuple[int, int]) -> None:
    reader, target = pipe
    writer = LogWriter(target)
    say(writer, "a")
    say(writer, "b" * 10_000)
    assert os.read(reader, 20_000) == b"a\n" + b"b" * 10_000 + b"\n"


def test_nobody_waits_for_a_pipe_that_is_not_read_and_what_was_lost_is_counted(
    pipe: tuple[int, int],
) -> None:
    reader, target = pipe
    writer = LogWriter(target)
    for number in range(100):  # more than any pipe holds
        say(writer, f"{number:02} {'x' * 1000}")
    read = os.read(reader, 1_000_000)
    say(writer, "after")
    whole = read.splitlines()
    lost = f"{100 - len(whole)} lines of the log were lost\nafter\n"
    assert os.read(reader, 1_000_000).decode() == lost
    assert 10 < len(whole) < 100
    assert [line[:2] for line in whole] == [f"{number:02}".encode() for number in range(len(whole))]


def test_a_full_disk_and_a_closed_descriptor_are_survived(pipe: tuple[int, int]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter(full)
    say(writer, "lost")
    os.close(full)
    say(writer, "lost")
    os.dup2(pipe[1], full)
    say(writer, "here")
    os.close(full)
    assert os.read(pipe[0], 1000) == b"2 lines of the log were lost\nhere\n"


def test_a_reader_that_has_left_is_survived(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    os.close(pipe[0])
    say(writer, "lost")


def test_arguments_that_do_not_fit_their_message_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with file.open("w") as target:
        writer = LogWriter(target.fileno())
        writer.handle(logging.LogRecord("x", logging.INFO, "", 0, "%d", ("a",), None))
    assert "'%d' cannot be written" in file.read_text()
