"""A stream's bytes -> its messages, each behind its coding and length. Sans-IO."""

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from scheduler.errors import invalid
from transports.grpc.call import too_large

PREFIX_BYTES = 5
# Tells gzip from zlib by the first bytes.
_ANY_FORMAT = 47
# What is unpacked at once: under a millisecond.
_PIECE_BYTES = 256 * 1024


class Packed(NamedTuple):
    """A compressed message."""

    body: bytes
    coding: str


class MessageReader:
    """Cut what arrives into messages of at most ``limit_bytes``, packed as ``coding`` says.

    ``buffered_bytes`` is what has arrived of a message that is not complete. A message's pieces
    are joined once, when the last has come.
    """

    def __init__(self, coding: str, limit_bytes: int) -> None:
        self._coding = coding
        self.limit_bytes = limit_bytes
        self._pieces: list[bytes | memoryview] = []
        self._wanted_bytes = PREFIX_BYTES
        self._packed: bool | None = None  # known once the prefix is
        self.buffered_bytes = 0

    def whole(self, data: bytes) -> bytes | None:
        """Return the message that ``data`` is, if it is the first, whole, alone and not packed.

        So most requests come; it takes a fraction of what ``feed`` does, which has the rest.
        """
        if self._pieces or len(data) < PREFIX_BYTES or data[0]:
            return None
        size_bytes = int.from_bytes(data[1:PREFIX_BYTES], "big")
        if size_bytes != len(data) - PREFIX_BYTES or size_bytes > self.limit_bytes:
            return None
        return data[PREFIX_BYTES:]

    def feed(self, data: bytes) -> Iterator[bytes | Packed]:
        """Yield the messages that ``data`` completes; it must be iterated to its end.

        Raises ServingError.
        """
        if data:
            self._pieces.append(data)
            self.buffered_bytes += len(data)
        while self.buffered_bytes >= self._wanted_bytes:
            if self._packed is None:
                self._begin()
            else:
                yield self._message()

    def clear(self) -> None:
        """Drop what has come of a message."""
        if self._pieces:
            self._pieces, self.buffered_bytes = [], 0

    def finish(self) -> None:
        """Raise ServingError if a message is cut off."""
        if self.buffered_bytes:
            raise invalid(
                f"the stream ends {self.buffered_bytes} bytes into a message of "
                f"{self._wanted_bytes} bytes, prefix included"
            )

    def _begin(self) -> None:
        if len(self._pieces[0]) < PREFIX_BYTES:
            self._pieces = [b"".join(self._pieces)]
        prefix = self._pieces[0]
        flag, size_bytes = prefix[0], int.from_bytes(prefix[1:PREFIX_BYTES], "big")
        if flag > 1:
            raise invalid(f"a message's compressed flag must be 0 or 1, got {flag}")
        if flag and self._coding == "identity":
            # Not INTERNAL, as the specification has it: that is our own failure, and is logged so.
            raise invalid("a message is compressed, but grpc-encoding does not say how")
        if size_bytes > self.limit_bytes:
            raise too_large(size_bytes, self.limit_bytes)
        self._packed = bool(flag)
        self._wanted_bytes = PREFIX_BYTES + size_bytes

    def _message(self) -> bytes | Packed:
        rest: list[bytes | memoryview] = []
        excess_bytes = self.buffered_bytes - self._wanted_bytes
        if excess_bytes:  # all of it in the last piece
            last = memoryview(self._pieces[-1])
            self._pieces[-1], rest = last[:-excess_bytes], [last[-excess_bytes:]]
        body = b"".join((memoryview(self._pieces[0])[PREFIX_BYTES:], *self._pieces[1:]))
        packed, self._packed = self._packed, None
        self._pieces, self.buffered_bytes, self._wanted_bytes = rest, excess_bytes, PREFIX_BYTES
        return Packed(body, self._coding) if packed else body


def unpack(message: Packed, limit_bytes: int) -> Iterator[bytes]:
    """Yield ``message`` piece by piece, for others to have their turn in between.

    Raises ServingError for more than ``limit_bytes`` in all.
    """
    stream = zlib.decompressobj(_ANY_FORMAT)
    left, size_bytes = message.body, 0
    while not stream.eof:
        try:
            piece = stream.decompress(left, _PIECE_BYTES)
        except zlib.error as error:
            raise invalid(f"a message is not {message.coding}: {error}") from error
        if not (piece or left or stream.eof):
            raise invalid(f"a message is not {message.coding}: it is cut off")
        left, size_bytes = stream.unconsumed_tail, size_bytes + len(piece)
        if size_bytes > limit_bytes:
            raise too_large(size_bytes, limit_bytes)
        yield piece


def framed(body: bytes) -> bytes:
    """Return ``body`` behind its prefix, not compressed."""
    return b"\0" + len(body).to_bytes(4, "big") + body
