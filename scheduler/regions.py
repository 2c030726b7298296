"""How a transport's clients have tensors in shared memory, where that is allowed."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Region(NamedTuple):
    """A part of a shared memory object, by the name that requests call it by.

    ``key`` names the object; ``offset`` and ``size_bytes`` are within it.
    """

    name: str
    key: str
    offset: int
    size_bytes: int


class Window(Protocol):
    """A part of a region, as one request named it."""

    @property
    def size_bytes(self) -> int:
        """How large it is."""

    def read(self) -> bytes:
        """Return a copy of its bytes, which no client can change. Raises ServingError."""

    def check(self) -> None:
        """Refuse what ``write`` would refuse, but for a lack of memory. Raises ServingError."""

    def write(self, data: memoryview) -> None:
        """Put ``data``, no more than it has room for, at its start. Raises ServingError."""


class Regions(Protocol):
    """The regions that clients have registered, whichever transport they did it on."""

    def register(self, region: Region) -> None:
        """Open the object and let requests name the region. Raises ServingError."""

    def unregister(self, name: str = "") -> None:
        """Forget the region, or all of them; what is not registered is no error."""

    def status(self, name: str = "") -> Sequence[Region]:
        """Return the region, or all of them. Raises ServingError if it is not registered."""

    def window(self, name: str, offset: int, size_bytes: int) -> Window:
        """Return a part of a region, ``offset`` from its start. Raises ServingError."""
