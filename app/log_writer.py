"""Where the log goes: a file descriptor that may be full, closed, or read by nobody."""

import logging
import os
import select

# What a pipe takes at once if it says that it takes anything (POSIX: PIPE_BUF).
_PIECE_BYTES = 4096


class LogWriter(logging.Handler):
    """Write lines to ``descriptor``, never waiting for it and never failing.

    A line that cannot be written is counted instead; the next that can says how many were lost.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lost = 0
        self._cut = False  # whether a line has been begun that has no end
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write ``record``."""
        line = self._line(record)
        if self._lost:
            note = record.__class__(
                record.name, logging.WARNING, "", 0, "%d lines of the log were lost",
                (self._lost,), None,
            )  # fmt: skip
            line = self._line(note) + line
        if self._cut:
            line = b"\n" + line
        if self._write(line):
            self._lost, self._cut = 0, False
        else:
            self._lost += 1

    def _line(self, record: logging.LogRecord) -> bytes:
        try:
            text = self.format(record)
        except (TypeError, ValueError) as error:  # the arguments do not fit the message
            text = f"{record.name}: {record.msg!r} cannot be written: {error!r}"
        return f"{text}\n".encode("utf-8", "backslashreplace")

    def _write(self, line: bytes) -> bool:
        """Return whether all of ``line`` has been written."""
        left = memoryview(line)
        try:
            while left:
                if not self._ready():
                    return False
                written = os.write(self._descriptor, left[:_PIECE_BYTES])
                left = left[written:]
                self._cut = bool(left)
        except OSError:
            return False
        return True

    def _ready(self) -> bool:
        """Return whether the descriptor takes some bytes now; a broken one says what is wrong."""
        return bool(self._poll.poll(0))
