"""The process's standard streams, which may be closed, full, or read by nobody."""

import logging
import os
import sys
from typing import TextIO

from app.log_format import formatter
from app.log_writer import LogWriter

STDOUT, STDERR = 1, 2


def fill_standard() -> None:
    """Open the standard streams that are closed, on nothing.

    Else the next files that are opened, sockets perhaps, get their numbers, and with them what
    libraries write there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or _writer(STDOUT)
    sys.stderr = sys.stderr or _writer(STDERR)


def _writer(descriptor: int) -> TextIO:
    return os.fdopen(descriptor, "w", encoding="utf-8", closefd=False)


def start_log(name: str) -> None:
    """Log to standard error in the format called ``name``."""
    writer = LogWriter(STDERR)
    writer.setFormatter(formatter(name))
    logging.basicConfig(handlers=[writer])


def silence_stdout() -> None:
    """Let standard output go nowhere: what it cannot take would fail again when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDOUT)
    os.close(nowhere)
    sys.stdout.flush()
