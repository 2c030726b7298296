"""Run another process and keep no more of what it writes than was asked for."""

import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

_STEP_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Finished:
    """How a process ended; ``stdout`` is the beginning of what it wrote, ``stderr`` the end."""

    returncode: int
    stdout: bytes
    stderr: bytes


def run_bounded(command: Sequence[str], timeout_s: float, most_bytes: int) -> Finished:
    """Run ``command``; keep ``most_bytes`` of each output, and read on so that it never waits.

    Its stdin ends when it does or this process does, however it ends. Raises OSError, and
    TimeoutError once it is killed.
    """
    process = subprocess.Popen(  # noqa: S603  # no shell; the caller's own module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    first, last = _Kept(process.stdout, most_bytes), _Kept(process.stderr, most_bytes, end=True)
    try:
        returncode = process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"it took more than {timeout_s:g} s") from error
    finally:
        process.kill()
        process.wait()
        if process.stdin:
            process.stdin.close()
        kept = first.close(), last.close()
    return Finished(returncode, *kept)


class _Kept:
    """Read a pipe to its end on a thread of its own, keeping one end of it."""

    def __init__(self, pipe: IO[bytes] | None, most_bytes: int, *, end: bool = False) -> None:
        self._pipe, self._most, self._end = pipe, most_bytes, end
        self._kept = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> bytes:
        """Return what was kept, once the pipe has ended."""
        self._thread.join()
        if self._pipe:
            self._pipe.close()
        return self._kept

    def _read(self) -> None:
        while self._pipe and (chunk := os.read(self._pipe.fileno(), _STEP_BYTES)):
            if self._end:
                self._kept = (self._kept + chunk)[-self._most :]
            elif len(self._kept) < self._most:
                self._kept = (self._kept + chunk)[: self._most]
