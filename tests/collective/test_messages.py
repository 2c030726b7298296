"""The control channel's bytes: any message comes back whole, any other bytes are refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import Code, ServingError
from transports.collective import messages
from transports.collective.framing import MAX_BODY_BYTES, Decoder, encode
from transports.collective.layout import places
from transports.collective.messages import Message, TensorHead

_HEAD = struct.Struct("!BBI")
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_whole = st.integers(-(1 << 62), 1 << 62)
_tensors = st.lists(
    st.builds(TensorHead, _texts, _texts, st.lists(_whole, max_size=3).map(tuple)), max_size=3
).map(tuple)
_some_seconds = st.none() | st.floats(allow_nan=False)
_messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(messages.Hello, _texts),
    st.builds(messages.Welcome, _texts),
    st.builds(messages.Rendezvous, _texts, st.binary(max_size=50)),
    st.builds(messages.Ready),
    st.builds(
        messages.Ask, _whole, _tensors, _texts, _texts, _texts, _texts,
        st.lists(_texts, max_size=2).map(tuple), _whole, _some_seconds, _texts,
    ),
    st.builds(messages.Proceed, _whole),
    st.builds(messages.Cancel, _whole),
    st.builds(messages.Answer, _whole, _tensors, _texts, _texts),
    st.builds(messages.Failure, _whole, _texts, _texts, _some_seconds),
    st.builds(messages.Transfer, st.booleans(), _whole),
    st.builds(messages.Transferred),
)  # fmt: skip


@given(st.lists(_messages, max_size=4), st.lists(st.integers(1, 64), min_size=1))
def test_messages_come_back_in_order_in_whatever_pieces_their_bytes_come(
    sent: list[Message], pieces: list[int]
) -> None:
    stream = b"".join(map(encode, sent))
    decoder, received = Decoder(), []
    turn = 0
    while stream:
        piece, stream = stream[: pieces[turn % len(pieces)]], stream[pieces[turn % len(pieces)] :]
        received += decoder.feed(piece)
        turn += 1
    assert received == sent


@given(st.binary(max_size=300))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    _decode_or_refuse(data)


@given(st.integers(1, 11), st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b'{"a":1}']))
def test_any_body_is_a_message_or_refused(kind: int, body: bytes) -> None:
    _decode_or_refuse(_HEAD.pack(1, kind, len(body)) + body)


def _decode_or_refuse(data: bytes) -> None:
    try:
        Decoder().feed(data)
    except ServingError as refusal:
        code = refusal.code
    else:
        return
    assert code is Code.INVALID_REQUEST


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ((2, 1, 0), "control message: version 2, expected 1"),
        ((1, 0, 0), "control message: kind 0, expected 1 to 11"),
        ((1, 12, 0), "control message: kind 12, expected 1 to 11"),
        (
            (1, 5, MAX_BODY_BYTES + 1),
            "control message: has 262145 bytes, above the limit of 262144",
        ),
    ],
)
def test_a_head_is_refused_before_its_body_is_awaited(head: tuple[int, int, int], why: str) -> None:
    with pytest.raises(ServingError) as refused:
        Decoder().feed(_HEAD.pack(*head))
    assert refused.value.detail == why


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"number": 1e400}',
        b'{"number": true}',
        b'{"number": 9223372036854775808}',
        b'{"number": ' + b"9" * 5000 + b"}",
        b'{"number": "\xff"}',
    ],
)
def test_json_that_is_no_number_is_refused_as_that(body: bytes) -> None:
    with pytest.raises(ServingError, match="control message Proceed: "):
        Decoder().feed(_HEAD.pack(1, 6, len(body)) + body)


def test_what_a_later_version_adds_is_left_aside() -> None:
    body = b'{"number": 7, "colour": "red"}'
    assert Decoder().feed(_HEAD.pack(1, 6, len(body)) + body) == [messages.Proceed(7)]


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (TensorHead("x", "FP32", (-1,)), "tensor 'x': shape [-1] has a negative size"),
        (TensorHead("x", "FP32", (1 << 62, 8)), "is larger than any memory"),
        (TensorHead("x", "FP32", (1,) * 9), "has 9 dimensions, above the limit of 8"),
        (TensorHead("x", "BYTES", (1,)), "datatype 'BYTES' is not supported"),
    ],
)
def test_a_tensor_that_is_none_is_refused_by_its_head(tensor: TensorHead, why: str) -> None:
    with pytest.raises(ServingError) as refused:
        places((tensor,))
    assert why in refused.value.detail


def test_tensors_stand_at_multiples_of_64_bytes_with_the_trailer_behind_them() -> None:
    heads = (
        TensorHead("a", "FP32", (3,)),
        TensorHead("b", "INT64", (2, 0)),
        TensorHead("c", "BOOL", (65,)),
    )
    assert places(heads) == ((slice(0, 12), slice(64, 64), slice(64, 129)), 137)
