"""Unix domain sockets: take a path from a dead server, never from one that lives."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class UnixAddress:
    """The socket file at ``path``; only who the ``mode`` lets write to it may connect."""

    def __init__(self, path: str, mode: int) -> None:
        self.path = Path(path).absolute()
        self._mode = mode
        self._claimed: tuple[int, int] | None = None

    @property
    def url(self) -> str:
        """The address as curl-like tools and gRPC write it."""
        return f"unix:{self.path}"

    def claim(self, listen: Callable[[str], T]) -> T:
        """Return what ``listen`` does, which must listen on the path it is given.

        The file of a server that is gone is replaced. Raises OSError that names the path: a server
        listens there, or it is no socket.
        """
        try:
            with _locked(self.path.parent), _creating(self._mode):
                _clear(self.path)
                listening = listen(str(self.path))
                self._claimed = _file_at(self.path)
        except OSError as error:
            why = error.strerror or error
            raise OSError(error.errno, f"unix_path: cannot listen on {self.path}: {why}") from error
        return listening

    def release(self) -> None:
        """Remove the file, unless it is another's by now. Call it while still listening.

        Later, the file's number on the disk may have been given to another's.
        """
        if self._claimed is not None:
            with contextlib.suppress(OSError), _locked(self.path.parent):
                if _file_at(self.path) == self._claimed:
                    self.path.unlink()
            self._claimed = None


class ClaimedPath:
    """The socket that listens at an address, for several processes to inherit. Raises OSError."""

    def __init__(self, address: UnixAddress, backlog: int) -> None:
        self.listening = address.claim(lambda path: listening_socket(path, backlog))
        self.release = address.release


def listening_socket(path: str, backlog: int) -> socket.socket:
    """Return a non-blocking socket that listens on ``path``. Raises OSError."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.bind(path)
        bound.listen(backlog)
    except OSError:
        bound.close()
        raise
    return bound


def _clear(path: Path) -> None:
    """Make way for a socket at ``path``. Raises OSError if it is taken."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise OSError(errno.EEXIST, "a file that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:  # a server too busy to take us is one that lives
            pass
    raise OSError(errno.EADDRINUSE, "another server listens there")


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep out others who claim or release a path in ``directory``.

    Of two servers that find the same dead socket, the slower one would remove the new one's.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _creating(mode: int) -> Iterator[None]:
    """Create sockets with ``mode`` from the first moment: chmod would leave them open for one."""
    before = os.umask(0o777 & ~mode)
    try:
        yield
    finally:
        os.umask(before)


def _file_at(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino
