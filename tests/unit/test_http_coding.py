"""Content codings: what is chosen, and that any bytes unpack or are refused within bounds."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import Code, ServingError
from transports.http.coding import (
    UNPACKED_PIECE_BYTES,
    Unpacker,
    accepted_coding,
    content_coding,
    packed,
)

CODINGS = ["gzip", "deflate"]


def unpacked(content: bytes, coding: str, size: int = 0) -> bytes:
    """Unpack ``content``, given ``size`` bytes at a time."""
    unpacker = Unpacker(coding)
    step = size or len(content) or 1
    pieces: list[bytes] = []
    for start in range(0, len(content), step):
        pieces += unpacker.pieces(content[start : start + step])
    assert all(len(piece) <= UNPACKED_PIECE_BYTES for piece in pieces)
    unpacker.finish()
    return b"".join(pieces)


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (b"", ""),
        (b"identity", ""),
        (b" GZIP ", "gzip"),
        (b"x-gzip", "gzip"),
        (b"deflate", "deflate"),
    ],
)
def test_the_coding_of_a_body_is_known(header: bytes, coding: str) -> None:
    assert content_coding(header) == coding


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (b"", ""),
        (b"identity", ""),
        (b"br, zstd", ""),
        (b"gzip", "gzip"),
        (b"gzip, deflate, br", "gzip"),
        (b"deflate, gzip;q=0.5", "deflate"),
        (b"gzip;q=0, deflate", "deflate"),
        (b"gzip; Q=0.1 , deflate;q=0.2", "deflate"),
        (b"*", "gzip"),
        (b"*;q=0", ""),
        (b"*, gzip;q=0", "deflate"),
        (b"gzip;q=0", ""),
        (b"gzip;q=nan", ""),
        (b"gzip;q=-1", ""),
        (b"gzip;q=", ""),
        (b"gzip;level=9", "gzip"),
    ],
)
def test_the_answers_coding_is_the_best_of_those_accepted(header: bytes, coding: str) -> None:
    assert accepted_coding(header) == coding


@given(st.binary(max_size=100))
def test_any_accept_encoding_is_understood(header: bytes) -> None:
    assert accepted_coding(header) in {"", *CODINGS}


@pytest.mark.parametrize("coding", CODINGS)
@given(content=st.binary(max_size=500), size=st.integers(1, 50))
def test_what_is_packed_unpacks_to_itself_in_pieces_of_any_size(
    coding: str, content: bytes, size: int
) -> None:
    assert unpacked(b"".join(packed(content, coding)), coding, size) == content


def test_large_bodies_unpack_to_themselves() -> None:
    content = bytes(range(256)) * 4 * (UNPACKED_PIECE_BYTES // 256) + b"rest"
    assert unpacked(gzip.compress(content), "gzip") == content
    assert gzip.decompress(b"".join(packed(content, "gzip"))) == content
    assert zlib.decompress(b"".join(packed(content, "deflate"))) == content


def refusal(content: bytes, coding: str, size: int = 0) -> Code | None:
    """Return why ``content`` is refused, None if it unpacks."""
    try:
        unpacked(content, coding, size)
    except ServingError as error:
        return error.code
    return None


@pytest.mark.parametrize("coding", CODINGS)
@given(content=st.binary(max_size=300), size=st.integers(1, 50))
def test_any_bytes_unpack_or_are_invalid(coding: str, content: bytes, size: int) -> None:
    assert refusal(content, coding, size) in {None, Code.INVALID_REQUEST}


@pytest.mark.parametrize("coding", CODINGS)
@given(data=st.data())
def test_a_stream_with_any_byte_changed_unpacks_or_is_invalid(
    coding: str, data: st.DataObject
) -> None:
    content = bytearray(b"".join(packed(b"some scores, some more scores", coding)))
    index = data.draw(st.integers(0, len(content) - 1))
    content[index] ^= data.draw(st.integers(1, 255))
    assert refusal(bytes(content), coding) in {None, Code.INVALID_REQUEST}


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("coding", CODINGS)
def test_a_stream_that_is_followed_by_more_is_refused(coding: str, size: int) -> None:
    content = b"".join(packed(b"1234", coding))
    with pytest.raises(ServingError, match=f"goes on after the end of its {coding} stream"):
        unpacked(content * 2, coding, size)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_stream_cut_short_is_refused(coding: str) -> None:
    content = b"".join(packed(b"1234", coding))
    with pytest.raises(ServingError, match=f"ends within its {coding} stream"):
        unpacked(content[:-1], coding)
