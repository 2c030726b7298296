"""What keys have left of their limits, where several processes take requests by the same keys.

A table in shared memory: a cell for each key and its limits, which are its tag. A cell whose limits
are all there again says nothing that a new one would not, and may be another's then.
"""

import contextlib
import fcntl
import hashlib
import mmap
import os
import struct
import time
from collections.abc import Iterator, Sequence

from app.access.bucket import Bucket

# Several times as many as keys there may be, so that few are looked for beside their place.
CELLS = 4096
_NEAR = 16
# The tag, when all is there again, then level and time of each of two buckets.
CELL = struct.Struct("<16s5d8x")
_TAG_BYTES = 16
# Others hold the lock for microseconds; one that was stopped meanwhile holds up nobody for longer,
# and costs at worst the count of a request.
_PATIENCE_S = 0.001


class Ledger:
    """Keep the levels of buckets in the memory behind ``descriptor``, by the system's own clock."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.memory = mmap.mmap(descriptor, CELLS * CELL.size)

    @staticmethod
    def make() -> "Ledger":
        """Return a new one, with a descriptor that other processes may inherit. Raises OSError."""
        descriptor = os.memfd_create("narsil-keys", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, CELLS * CELL.size)
        return Ledger(descriptor)

    def close(self) -> None:
        """Let go of the memory."""
        self.memory.close()
        os.close(self.descriptor)

    @contextlib.contextmanager
    def held(self, tag: bytes, buckets: Sequence[Bucket], now_s: float) -> Iterator[None]:
        """Have one or two ``buckets`` be as full as all processes left them, to check and take."""
        locked = self._lock()
        place = None
        try:
            place = self._find(tag, now_s)
            if place is not None:
                self._load(place, tag, buckets, now_s)
            yield
        finally:
            if place is not None:
                self._store(place, tag, buckets)
            if locked:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def _lock(self) -> bool:
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until_s:
                    return False
                os.sched_yield()
            else:
                return True

    def _find(self, tag: bytes, now_s: float) -> int | None:
        """Return where the cell of ``tag`` is, or may be; None where others have every place."""
        free = None
        first = int.from_bytes(tag[:8], "little")
        for number in range(first, first + _NEAR):
            place = number % CELLS * CELL.size
            if self.memory[place : place + _TAG_BYTES] == tag:
                return place
            if free is None and CELL.unpack_from(self.memory, place)[1] <= now_s:
                free = place
        return free

    def _load(self, place: int, tag: bytes, buckets: Sequence[Bucket], now_s: float) -> None:
        found, _, *levels = CELL.unpack_from(self.memory, place)
        for number, bucket in enumerate(buckets):
            if found == tag:
                bucket.put(levels[2 * number], levels[2 * number + 1])
            else:
                bucket.fill(now_s)

    def _store(self, place: int, tag: bytes, buckets: Sequence[Bucket]) -> None:
        levels = [number for bucket in buckets for number in (bucket.level, bucket.at_s)]
        levels += [0.0] * (4 - len(levels))
        full_s = max(bucket.full_s for bucket in buckets)
        CELL.pack_into(self.memory, place, tag, full_s, *levels)


def tag_of(name: str, *limits: float) -> bytes:
    """Return what a key with these limits goes by; one with others starts anew."""
    return hashlib.blake2b(repr((name, limits)).encode(), digest_size=_TAG_BYTES).digest()
