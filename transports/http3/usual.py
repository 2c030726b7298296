"""Requests and answers of the usual kind: one HEADERS frame, one DATA frame, and the end.

aioquic's HTTP/3 walks through a head byte by byte and through an answer frame by frame, which is
half of what a small request costs it. What is not of the usual kind is left to it, and so are all
refusals.
"""

import re
from collections.abc import Sequence

from transports.http3.numbers import number, pull_number

# Frame types (RFC 9114 7.2).
_DATA, _HEADERS = 0x00, 0x01
# RFC 9114 4.2 and 10.3: no capitals, controls or spaces in a name, no line's end in a value.
_NAME = re.compile(rb"[!-9;-@\[-~]+")
_VALUE = re.compile(rb"(?![ \t])[^\0\r\n]*(?<![ \t])")
_PSEUDO = frozenset((b":method", b":scheme", b":authority", b":path"))
# Fields of a connection, and one with a rule of its own.
_OTHER = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"transfer-encoding", b"upgrade")
)
_LENGTH, _MOST_DIGITS = b"content-length", 20


def whole_request(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the header block and the body of ``data``, None if it is not one of each."""
    try:
        size, at = pull_number(data, 1)
        body_at = at + size
        if data[0] != _HEADERS or data[body_at] != _DATA:
            return None
        body_size, start = pull_number(data, body_at + 1)
    except IndexError:
        return None
    return (data[at:body_at], data[start:]) if start + body_size == len(data) else None


def whole_answer(block: bytes, body: bytes) -> bytes:
    """Return the frames of an answer with the header ``block`` and ``body``."""
    parts = (b"\x01", number(len(block)), block, b"\0", number(len(body)), body)
    return b"".join(parts)


def states_length(headers: Sequence[tuple[bytes, bytes]], length: int) -> bool:
    """Return whether ``headers`` are a request's as they should be, of a body of ``length`` bytes.

    False says nothing: then somebody has to look closer.
    """
    pseudo, fields = headers[: len(_PSEUDO)], headers[len(_PSEUDO) :]
    if {name for name, value in pseudo if value} != _PSEUDO:  # each of them, before the others
        return False
    lengths = 0
    for name, value in fields:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or name in _OTHER:
            return False
        if name == _LENGTH:
            lengths += 1
            if not value.isdigit() or len(value) > _MOST_DIGITS or int(value) != length:
                return False
    return lengths <= 1 and all(_VALUE.fullmatch(value) for _, value in pseudo)
