"""What front ends and their engine say to each other: frames, many of them in one packet.

Sans-IO. A packet (one message of a SEQPACKET socket) is whole frames one behind the other; a frame
is a head, then its payload. A payload that is too long for a packet goes in pieces, all but the
last marked as followed by more.
"""

import enum
import struct
from collections.abc import Iterable, Iterator

from scheduler.often import often_made

# Well below what the kernel takes in one message (net.core.wmem_default, 208 KiB).
MAX_PACKET_BYTES = 64 * 1024
# Of one payload put together: the largest answer there may be, and something around it.
MAX_PAYLOAD_BYTES = 256 * 1024 * 1024
# Kind, whether more follows, length of the payload, number of what it is about.
_HEAD = struct.Struct("<BBxxIQ")
_MAX_PIECE_BYTES = MAX_PACKET_BYTES - _HEAD.size


class WireError(Exception):
    """Say what the other side got wrong; nothing else it says is to be believed."""


class Kind(enum.IntEnum):
    """What a frame says; the number in its head is that of a request, or of a call."""

    STATE = 1  # engine: what is served, and whether it is ready
    INFER = 2  # front end: a request, its tensors in a slot
    CANCEL = 3  # front end: nobody waits for the request any more
    ANSWER = 4  # engine: the answer to a request
    REFUSAL = 5  # engine: why a request, or a call, has no answer
    RELEASE = 6  # engine: nobody reads the slots of these requests any more
    RECORDS = 7  # front end: what an observer should hear
    CALL = 8  # front end: something else that only the engine can do
    RESULT = 9  # engine: what came of a call
    READY = 10  # front end: it listens, and where
    FAILED = 11  # front end: why it cannot listen
    STOP = 12  # engine: answer what is under way, within so many seconds, and leave
    BEAT = 13  # both: this side goes on
    TELL = 14  # engine: report now what was heard, then say so
    TOLD = 15  # front end: that is done


_KINDS = {int(kind): kind for kind in Kind}


@often_made(frozen=True, slots=True)
class Frame:
    """One message."""

    kind: Kind
    number: int = 0
    payload: bytes = b""


def packed(frames: Iterable[Frame]) -> Iterator[bytes]:
    """Yield ``frames`` in as few packets as hold them, in order."""
    parts: list[bytes] = []
    size = 0
    for frame in frames:
        payload = frame.payload
        whole = len(payload) <= _MAX_PIECE_BYTES
        for more, piece in ((False, payload),) if whole else _pieces(payload):
            length = _HEAD.size + len(piece)
            if size + length > MAX_PACKET_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
            parts += [_HEAD.pack(frame.kind, more, len(piece), frame.number), piece]
            size += length
    if parts:
        yield b"".join(parts)


def _pieces(payload: bytes) -> Iterator[tuple[bool, bytes]]:
    for start in range(0, len(payload), _MAX_PIECE_BYTES):
        end = start + _MAX_PIECE_BYTES
        yield end < len(payload), payload[start:end]


class Unpacker:
    """Turns packets back into frames; after a WireError it must not be used."""

    def __init__(self) -> None:
        self._begun: Frame | None = None
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, packet: bytes) -> list[Frame]:
        """Return the frames that ``packet`` completes. Raises WireError."""
        frames = []
        start = 0
        while start < len(packet):
            if len(packet) - start < _HEAD.size:
                raise WireError(f"{len(packet) - start} bytes behind the last frame")
            kind, more, length, number = _HEAD.unpack_from(packet, start)
            start += _HEAD.size
            if kind not in _KINDS or more > 1:
                raise WireError(f"no frame begins with {kind}, {more}")
            if length > len(packet) - start:
                raise WireError(f"a frame of {length} bytes, and {len(packet) - start} are there")
            frame = Frame(_KINDS[kind], number, packet[start : start + length])
            start += length
            if more or self._begun is not None:
                whole = self._joined(frame, more=bool(more))
                frames += [] if whole is None else [whole]
            else:
                frames.append(frame)
        return frames

    def _joined(self, frame: Frame, *, more: bool) -> Frame | None:
        """Keep a piece; return what its last completes."""
        begun = self._begun = self._begun or frame
        if (frame.kind, frame.number) != (begun.kind, begun.number):
            raise WireError(f"a piece of {frame.kind.name} amid those of {begun.kind.name}")
        self._size += len(frame.payload)
        if self._size > MAX_PAYLOAD_BYTES:
            raise WireError(f"{begun.kind.name} has more than {MAX_PAYLOAD_BYTES} bytes")
        self._pieces.append(frame.payload)
        if more:
            return None
        whole = Frame(begun.kind, begun.number, b"".join(self._pieces))
        self._begun, self._pieces, self._size = None, [], 0
        return whole
