"""Shared memory for the tensors of requests: one arena a front end, which hands out its slots.

A slot begins with its generation, a number that no other slot of the arena ever had: the engine
believes a message only if both say the same. The engine counts who reads a slot by Python's own
references; the memory of a front end that is gone stays until the last reader has let go.
"""

import fcntl
import mmap
import os
import struct
import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from app.frontends.wire import WireError
from scheduler.errors import Code, ServingError
from scheduler.often import often_made

# The smallest slot, a page; each larger one is twice the one before.
LEAST_BYTES = 4096
# A slot's head; also how tensors are aligned, for vector instructions.
ALIGNED_BYTES = 64
_GENERATION = struct.Struct("<Q")
# From here a slot's pages go back to the system when it is freed, so that one large request does
# not hold its memory for ever; below, faulting them in again would cost more than the request.
_RETURNED_BYTES = 1024 * 1024
_RETRY_AFTER_S = 0.1

Whole = npt.NDArray[np.uint8]


@often_made(frozen=True, slots=True)
class Slot:
    """Where a request's tensors lie: ``size`` bytes from ``offset`` on, its head among them."""

    offset: int
    size: int
    generation: int


class Blocks:
    """Hand out parts of ``size`` bytes, a power of two: a buddy allocator."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: dict[int, list[int]] = {size: [0]}  # by size; the last freed goes first
        self._taken: dict[int, int] = {}

    @property
    def taken_bytes(self) -> int:
        """What is handed out."""
        return sum(self._taken.values())

    def take(self, wanted: int) -> int | None:
        """Return where ``wanted`` bytes are free, None if nowhere."""
        size = block_bytes(wanted)
        found = size
        while not self._free.get(found):
            found *= 2
            if found > self._size:
                return None
        offset = self._free[found].pop()
        while found > size:
            found //= 2
            self._free.setdefault(found, []).append(offset + found)
        self._taken[offset] = size
        return offset

    def give(self, offset: int) -> int:
        """Take back what begins at ``offset``; return its size. Raises KeyError: nothing does."""
        given = size = self._taken.pop(offset)
        while size < self._size and (offset ^ size) in (free := self._free.get(size, [])):
            free.remove(offset ^ size)
            offset = min(offset, offset ^ size)
            size *= 2
        self._free.setdefault(size, []).append(offset)
        return given


class Arena:
    """A front end's end: takes slots and writes to them."""

    def __init__(self, descriptor: int) -> None:
        self._size = os.fstat(descriptor).st_size
        self._memory = mmap.mmap(descriptor, self._size)
        self._blocks = Blocks(self._size)
        self._generation = 0

    @property
    def taken_bytes(self) -> int:
        """What requests hold."""
        return self._blocks.taken_bytes

    def take(self, size: int) -> Slot:
        """Return a slot of ``size`` bytes. Raises ServingError (OVERLOADED, PAYLOAD_TOO_LARGE)."""
        if size > self._size:
            raise ServingError(
                Code.PAYLOAD_TOO_LARGE,
                f"the request's tensors take {size} bytes, and all slots of a front end have"
                f" {self._size} (frontend_slot_bytes)",
            )
        offset = self._blocks.take(size)
        if offset is None:
            raise ServingError(
                Code.OVERLOADED,
                f"the requests of a front end would hold more than {self._size} bytes"
                f" (frontend_slot_bytes): {self.taken_bytes} are taken, {size} more are wanted",
                _RETRY_AFTER_S,
            )
        self._generation += 1
        _GENERATION.pack_into(self._memory, offset, self._generation)
        return Slot(offset, size, self._generation)

    def bytes_of(self, slot: Slot) -> Whole:
        """Return the slot to write to."""
        return np.frombuffer(self._memory, np.uint8, slot.size, slot.offset)

    def give(self, slot: Slot) -> None:
        """Take a slot back, which nobody reads any more."""
        size = self._blocks.give(slot.offset)
        if size >= _RETURNED_BYTES:
            self._memory.madvise(mmap.MADV_REMOVE, slot.offset, size)


class ReadArena:
    """The engine's end: looks at slots, and knows when nobody does any more."""

    def __init__(self, descriptor: int) -> None:
        self._size = os.fstat(descriptor).st_size
        self._memory: mmap.mmap | None = mmap.mmap(descriptor, self._size, prot=mmap.PROT_READ)
        self._read: dict[int, weakref.ref[Whole]] = {}

    @property
    def read(self) -> int:
        """How many slots somebody reads."""
        return len(self._read)

    def close(self) -> None:
        """Look no more; the memory and its descriptor go with the last reader.

        Whoever has the arena may be part of a cycle, and be collected much later, or never.
        """
        self._memory = None

    def look(self, slot: Slot, released: Callable[[], None]) -> Whole:
        """Return the slot's bytes, which cannot be written.

        Once neither they nor any view of them is left ``released`` is called, on whichever thread
        had the last. Raises WireError.
        """
        if not ALIGNED_BYTES <= slot.size <= self._size or slot.offset % LEAST_BYTES:
            raise WireError(f"no slot has {slot.size} bytes from {slot.offset} on")
        if not 0 <= slot.offset <= self._size - slot.size:
            raise WireError(f"{slot.size} bytes from {slot.offset} on are not in the arena")
        if self._memory is None:
            raise WireError("the arena is closed")
        (generation,) = _GENERATION.unpack_from(self._memory, slot.offset)
        if generation != slot.generation or generation in self._read:
            raise WireError(f"the slot at {slot.offset} is not in its generation {slot.generation}")
        whole = np.frombuffer(self._memory, np.uint8, slot.size, slot.offset)

        def gone(_: object) -> None:
            self._read.pop(generation, None)
            released()

        self._read[generation] = weakref.ref(whole, gone)
        return whole


def block_bytes(wanted: int) -> int:
    """Return the size of the block that ``wanted`` bytes get."""
    return max(LEAST_BYTES, 1 << (wanted - 1).bit_length())


def make_memory(size: int) -> int:
    """Return the descriptor of ``size`` bytes that can be shared, none of which exists yet.

    Nobody can cut it shorter, which would kill whoever reads there.
    """
    descriptor = os.memfd_create("narsil-slots", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
