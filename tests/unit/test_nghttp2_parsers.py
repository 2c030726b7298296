"""The pure parts: messages out of pieces, heads, percent-encoding."""

import contextlib
import gzip
import math
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ServingError
from tests.fixtures.raw_grpc import framed, head
from transports.grpc.nghttp2.head import NotGrpcError, parse_head
from transports.grpc.nghttp2.messages import MessageReader, Packed, unpack
from transports.grpc.nghttp2.replies import message

LIMIT_BYTES = 1000


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return ``data`` cut at ``cuts``."""
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(st.binary(max_size=50), st.integers(0, 2_000_000))
def test_what_was_packed_comes_back_in_pieces(start: bytes, zeros: int) -> None:
    body = start + bytes(zeros)
    packed = Packed(gzip.compress(body, compresslevel=1), "gzip")
    assert b"".join(unpack(packed, len(body))) == body
    if body:
        with pytest.raises(ServingError, match="the limit is"):
            list(unpack(packed, len(body) - 1))


def plain(message: bytes | Packed) -> bytes:
    """Return a message as its sender wrote it."""
    return message if isinstance(message, bytes) else b"".join(unpack(message, LIMIT_BYTES))


@given(
    st.lists(st.tuples(st.binary(max_size=60), st.booleans()), max_size=6),
    st.lists(st.integers(0, 1000), max_size=12),
)
def test_messages_come_out_whole_however_they_are_cut(
    sent: list[tuple[bytes, bool]], cuts: list[int]
) -> None:
    reader = MessageReader("gzip", LIMIT_BYTES)
    data = b"".join(
        framed(gzip.compress(body), flag=1) if packed else framed(body) for body, packed in sent
    )
    received = [plain(body) for piece in pieces(data, cuts) for body in reader.feed(piece)]
    assert received == [body for body, _ in sent]
    assert reader.buffered_bytes == 0
    reader.finish()


@given(
    st.binary(max_size=60).map(framed) | st.binary(max_size=20),
    st.binary(max_size=3),
    st.integers(0, 80),
)
def test_what_is_taken_in_one_piece_is_what_feeding_it_would_give(
    data: bytes, more: bytes, limit_bytes: int
) -> None:
    taken = MessageReader("identity", limit_bytes).whole(data + more)
    fed = MessageReader("identity", limit_bytes)
    try:
        messages = list(fed.feed(data + more))
        fed.finish()
    except ServingError:
        messages = []
    assert [taken] == messages if len(messages) == 1 else taken is None


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_any_bytes_are_messages_or_our_error(data: bytes, cuts: list[int]) -> None:
    reader = MessageReader("gzip", LIMIT_BYTES)
    with contextlib.suppress(ServingError):
        for piece in pieces(data, cuts):
            assert all(len(plain(body)) <= LIMIT_BYTES for body in reader.feed(piece))
        reader.finish()


FIELD = st.tuples(
    st.sampled_from(
        [b":method", b":path", b"content-type", b"grpc-timeout", b"grpc-encoding", b"x-bin", b"x"]
    )
    | st.binary(min_size=1, max_size=10),
    st.sampled_from([b"POST", b"application/grpc", b"gzip", b"1S"]) | st.binary(max_size=20),
)


@given(st.lists(FIELD, max_size=8), st.booleans())
def test_any_fields_are_a_head_or_our_error(fields: list[tuple[bytes, bytes]], whole: bool) -> None:
    with contextlib.suppress(NotGrpcError, ServingError):
        assert parse_head([*head(), *fields] if whole else fields).timeout_s >= 0


def test_a_head_says_path_metadata_timeout_and_coding() -> None:
    parsed = parse_head(
        head(
            "/a.B/C",
            (b"grpc-timeout", b"250m"),
            (b"grpc-encoding", b"gzip"),
            (b"grpc-accept-encoding", b"gzip"),
            (b"user-agent", b"test"),
            (b"trace-bin", b"AAEC"),
        )
    )
    assert parsed.path == "/a.B/C"
    assert parsed.metadata == {"user-agent": "test", "trace-bin": b"\0\1\2"}
    assert parsed.timeout_s == 0.25
    assert parsed.coding == "gzip"
    assert parse_head(head()).timeout_s == math.inf


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_detail_is_printable_ascii_on_the_wire_and_comes_back(detail: str) -> None:
    encoded = message(detail)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote_to_bytes(encoded).decode() == detail


@pytest.mark.parametrize("detail", ["plain words, 50 and (more)!", "a=b; c~d \"e\" 'f'"])
def test_plain_text_stays_readable(detail: str) -> None:
    assert message(detail) == detail.encode()
