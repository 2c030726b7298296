"""Content codings, gzip and deflate, in pieces: none takes long or needs much memory."""

import asyncio
import zlib
from collections.abc import Iterator
from http import HTTPStatus

from scheduler.errors import invalid
from transports.http.problem import HttpError

# Whoever packs or unpacks between pieces lets others have their turn: each takes under a
# millisecond.
UNPACKED_PIECE_BYTES = 256 * 1024
PACKED_PIECE_BYTES = 64 * 1024
# Below it packing costs more time than the network takes for the bytes it saves.
MIN_PACKED_BYTES = 4096

# RFC 9110 8.4.1.2: "deflate" is the zlib format.
_WINDOW_BITS = {"gzip": 31, "deflate": 15}
_SUPPORTED = ", ".join(_WINDOW_BITS)


def content_coding(header: bytes) -> str:
    """Return the coding of a body, "" for none, from its Content-Encoding. Raises HttpError."""
    name = _name(header.decode("latin-1")) if header else ""
    if name in {"", "identity"}:
        return ""
    if name not in _WINDOW_BITS:
        raise HttpError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"content-encoding: {header[:64].decode('latin-1')!r} is not supported,"
            f" send {_SUPPORTED} or no coding",
            {"accept-encoding": _SUPPORTED},
        )
    return name


def accepted_coding(header: bytes) -> str:
    """Return the coding that an Accept-Encoding likes best of ours, "" for none."""
    if not header:
        return ""
    weights: dict[str, float] = {}
    for item in header.decode("latin-1").split(","):
        name, _, weight = item.partition(";")
        weights[_name(name)] = _weight(weight)
    anything = weights.get("*", 0.0)
    best = max(_WINDOW_BITS, key=lambda name: weights.get(name, anything))
    return best if weights.get(best, anything) > 0 else ""


class Unpacker:
    """Unpack one body as it arrives."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._stream = zlib.decompressobj(_WINDOW_BITS[coding])

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what ``data`` unpacks to, at most UNPACKED_PIECE_BYTES at a time.

        Raises ServingError (INVALID_REQUEST).
        """
        full = True
        while full or data:
            if self._stream.eof:
                break
            try:
                piece = self._stream.decompress(data, UNPACKED_PIECE_BYTES)
            except zlib.error as error:
                raise invalid(f"body is not {self._coding}: {error}") from error
            data = self._stream.unconsumed_tail
            full = len(piece) == UNPACKED_PIECE_BYTES
            yield piece
        if data or self._stream.unused_data:
            raise invalid(f"body goes on after the end of its {self._coding} stream")

    def finish(self) -> None:
        """Refuse a stream that was cut short. Raises ServingError (INVALID_REQUEST)."""
        if not self._stream.eof:
            raise invalid(f"body ends within its {self._coding} stream")


def packed(body: bytes, coding: str) -> Iterator[bytes]:
    """Yield ``body`` packed, in pieces."""
    # The lowest level: floats hardly shrink further, and it takes a third of the time.
    stream = zlib.compressobj(1, wbits=_WINDOW_BITS[coding])
    view = memoryview(body)
    for start in range(0, len(view), PACKED_PIECE_BYTES):
        yield stream.compress(view[start : start + PACKED_PIECE_BYTES])
    yield stream.flush()


async def pack(body: bytes, coding: str) -> bytes:
    """Return ``body`` packed; others have their turn between its pieces."""
    pieces = []
    for piece in packed(body, coding):
        pieces.append(piece)
        await asyncio.sleep(0)
    return b"".join(pieces)


def _name(text: str) -> str:
    name = text.strip().lower()
    return "gzip" if name == "x-gzip" else name  # RFC 9110 8.4.1.3


def _weight(parameter: str) -> float:
    name, _, value = parameter.partition("=")
    if name.strip().lower() != "q":
        return 1.0
    # No more than RFC 9110 12.4.2 allows: no sign, exponent or "nan".
    digits = value.strip()
    return float(digits) if digits.replace(".", "", 1).isdecimal() and digits.isascii() else 0.0
