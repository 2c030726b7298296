"""System shared memory: objects of POSIX, read and written as files rather than mapped.

A client may cut its object short at any time. A mapping would then be a fatal signal on its next
use; a read of a file is merely short. And what was read is a copy, so that nothing can change
between its check and its use.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scheduler.errors import Code, ServingError, invalid, shown
from scheduler.regions import Region

# Where Linux keeps them.
FOLDER = Path("/dev/shm")  # noqa: S108  # by their own names, and none is made here
# Each holds a file open.
MAX_REGIONS = 1024
MAX_TOTAL_BYTES = 64 << 30
MAX_NAME_CHARACTERS = 255
_MAX_KEY_BYTES = 255
# No link and no pipe that would wait for its other end.
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(slots=True, eq=False)
class _Opened:
    """A registered region and its object; ``descriptor`` is -1 once it is unregistered."""

    region: Region
    descriptor: int
    identity: tuple[int, int]

    def close(self) -> None:
        """Let go of the object."""
        os.close(self.descriptor)
        self.descriptor = -1


@dataclass(frozen=True, slots=True)
class _Window:
    """A part of a region; ``offset`` counts from the start of the object."""

    opened: _Opened
    offset: int
    size_bytes: int

    def read(self) -> bytes:
        """Return a copy. Raises ServingError if the object has become too short."""
        self.check()
        data = b"".join(self._pieces())
        if len(data) < self.size_bytes:
            raise self._cut()
        return data

    def check(self) -> None:
        """Refuse a region that is gone, or cut short since. Raises ServingError."""
        if self.opened.descriptor < 0:
            raise invalid(f"{_label(self.opened.region.name)} was unregistered meanwhile")
        if os.fstat(self.opened.descriptor).st_size < self.offset + self.size_bytes:
            raise self._cut()

    def write(self, data: memoryview) -> None:
        """Put ``data`` at the start. Raises ServingError."""
        self.check()
        left = data.cast("B")[: self.size_bytes]
        offset = self.offset
        try:
            while left:
                written = os.pwrite(self.opened.descriptor, left, offset)
                left, offset = left[written:], offset + written
        except OSError as error:  # an object may be larger than the memory there is
            label = _label(self.opened.region.name)
            raise ServingError(
                Code.UNAVAILABLE, f"{label} cannot be written: {error.strerror}"
            ) from error

    def _pieces(self) -> Iterator[bytes]:
        """Yield all that is there; one system call reads no more than 2 GiB."""
        offset, end = self.offset, self.offset + self.size_bytes
        while offset < end and (piece := os.pread(self.opened.descriptor, end - offset, offset)):
            offset += len(piece)
            yield piece

    def _cut(self) -> ServingError:
        region = self.opened.region
        return invalid(
            f"{_label(region.name)}: its object {shown(region.key)} has become shorter than the"
            f" {self.offset + self.size_bytes} bytes that the request reaches to"
        )


class SharedRegions:
    """Regions in objects of ``folder`` whose names begin with ``prefix``.

    They belong to the user ``owner``, by default the server's own.
    """

    def __init__(self, prefix: str, folder: Path = FOLDER, owner: int | None = None) -> None:
        self._prefix = prefix.lstrip("/")
        self._folder = folder
        self._owner = os.geteuid() if owner is None else owner
        self._opened: dict[str, _Opened] = {}

    def register(self, region: Region) -> None:
        """Open the object; the same again is no error, unless another took its name meanwhile.

        Raises ServingError (INVALID_REQUEST, PERMISSION_DENIED) naming what is wrong.
        """
        label = _label(region.name)
        if not 0 < len(region.name) <= MAX_NAME_CHARACTERS:
            raise invalid(f"{label}: expected a name of 1 to {MAX_NAME_CHARACTERS} characters")
        path = self._folder / self._object(label, region.key)
        known = self._opened.get(region.name)
        if known is None:
            self._check_room(label, region)
        elif known.region != region:
            raise invalid(f"{label} is registered, and not so: unregister it first")
        opened = _open(label, region, path, self._owner)
        if known is None:
            self._opened[region.name] = opened
            return
        opened.close()
        if opened.identity != known.identity:
            raise invalid(
                f"{label}: another object is called {shown(region.key)} now than when it was"
                " registered: unregister it first"
            )

    def unregister(self, name: str = "") -> None:
        """Forget it, or all; requests under way that were to write there fail."""
        for each in [name] if name else [*self._opened]:
            opened = self._opened.pop(each, None)
            if opened is not None:
                opened.close()

    def status(self, name: str = "") -> list[Region]:
        """Return it, or all. Raises ServingError."""
        if name:
            return [self._known(name).region]
        return [opened.region for opened in self._opened.values()]

    def window(self, name: str, offset: int, size_bytes: int) -> _Window:
        """Return a part. Raises ServingError naming the bytes asked for and there."""
        opened = self._known(name)
        if not 0 <= offset <= offset + size_bytes <= opened.region.size_bytes:
            raise invalid(
                f"{_label(name)} has {opened.region.size_bytes} bytes,"
                f" but {size_bytes} from offset {offset} are asked for"
            )
        return _Window(opened, opened.region.offset + offset, size_bytes)

    def _known(self, name: str) -> _Opened:
        opened = self._opened.get(name)
        if opened is None:
            raise invalid(f"{_label(name)} is not registered")
        return opened

    def _object(self, label: str, key: str) -> str:
        """Return the file's name. Raises ServingError."""
        name = key.lstrip("/")
        if not 0 < len(name.encode()) <= _MAX_KEY_BYTES or {"/", "\0"} & set(name):
            raise invalid(
                f"{label}: key {shown(key)} names no POSIX shared memory object: expected /NAME,"
                f" at most {_MAX_KEY_BYTES} bytes without another slash"
            )
        if name in {".", ".."}:
            raise invalid(f"{label}: key {shown(key)} names no POSIX shared memory object")
        if not name.startswith(self._prefix):
            raise ServingError(
                Code.PERMISSION_DENIED,
                f"{label}: key {shown(key)} does not begin with '/{self._prefix}', as this server"
                " demands (server.shared_memory)",
            )
        return name

    def _check_room(self, label: str, region: Region) -> None:
        if len(self._opened) >= MAX_REGIONS:
            raise invalid(f"{label}: {MAX_REGIONS} regions are registered, which is the limit")
        taken = sum(opened.region.size_bytes for opened in self._opened.values())
        if taken + region.size_bytes > MAX_TOTAL_BYTES:
            raise invalid(
                f"{label}: has {region.size_bytes} bytes beside {taken} of other regions,"
                f" above the limit of {MAX_TOTAL_BYTES}"
            )


def _open(label: str, region: Region, path: Path, owner: int) -> _Opened:
    """Return the region with its object open. Raises ServingError."""
    key = shown(region.key)
    try:
        descriptor = os.open(path, _OPEN)
    except OSError as error:
        raise invalid(f"{label}: object {key} cannot be opened: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise invalid(f"{label}: object {key} is no shared memory")
        if found.st_uid != owner:
            raise ServingError(
                Code.PERMISSION_DENIED, f"{label}: object {key} belongs to another user"
            )
        if region.offset < 0 or not 0 < region.size_bytes <= found.st_size - region.offset:
            raise invalid(
                f"{label}: {region.size_bytes} bytes from offset {region.offset} are not within"
                f" object {key}, which has {found.st_size} bytes"
            )
    except ServingError:
        os.close(descriptor)
        raise
    return _Opened(region, descriptor, (found.st_dev, found.st_ino))


def _label(name: str) -> str:
    return f"shared memory region {shown(name)}"
