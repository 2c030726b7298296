"""What front ends and engine say: whatever was said is heard, whatever was not is refused."""

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app.frontends.messages import (
    decode_answer,
    decode_refusal,
    decode_request,
    encode_answer,
    encode_refusal,
    encode_request,
    place,
    read,
    write,
)
from app.frontends.records import decode_records, encode_records
from app.frontends.slots import LEAST_BYTES, Blocks, Slot, block_bytes
from app.frontends.state import decode_state
from app.frontends.texts import Tokens
from app.frontends.wire import MAX_PACKET_BYTES, Frame, Kind, Unpacker, WireError, packed
from scheduler.errors import Code, ServingError
from scheduler.observer import Answered
from scheduler.types import Array, InferRequest, InferResponse, Timing
from transports.http3.steering import MAX_PROCESSES, Steering, process_of

DTYPES = st.sampled_from(["bool", "int32", "int64", "uint8", "float16", "float32", "float64"])
# What the default run has time for.
quick = settings(max_examples=25)
TENSORS = DTYPES.flatmap(
    lambda dtype: arrays.arrays(
        np.dtype(dtype), arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
    )
)
NUMBERS = st.integers(0, 2**64 - 1)
FRAMES = st.builds(
    Frame,
    st.sampled_from(Kind),
    NUMBERS,
    st.one_of(
        st.binary(max_size=200),
        st.integers(MAX_PACKET_BYTES - 40, 3 * MAX_PACKET_BYTES).map(lambda size: b"x" * size),
    ),
)
# Not st.text: making its tables takes longer than everything here.
TEXTS = st.sampled_from(["", "a", "\xe9", 'say "\\"', "\0\n", "\U0001f600", "x" * 300])
CLIENTS_TEXTS = TEXTS | st.sampled_from(["\ud800", "a\udfffb"])
SECONDS = st.one_of(st.just(math.inf), st.floats(1e-6, 1e6))


@quick
@given(st.lists(FRAMES, max_size=8))
def test_frames_come_out_as_they_went_in_however_they_are_packed(frames: list[Frame]) -> None:
    packets = list(packed(frames))
    assert all(0 < len(packet) <= MAX_PACKET_BYTES for packet in packets)
    unpacker = Unpacker()
    assert [frame for packet in packets for frame in unpacker.feed(packet)] == frames


@quick
@given(st.lists(st.binary(max_size=100), max_size=4))
def test_any_packet_is_frames_or_refused(packets: list[bytes]) -> None:
    unpacker = Unpacker()
    for packet in packets:
        try:
            frames = unpacker.feed(packet)
        except WireError:
            return
        assert all(isinstance(frame.kind, Kind) for frame in frames)


@quick
@given(st.lists(FRAMES, min_size=1, max_size=3), st.data())
def test_a_torn_packet_is_refused_or_misses_whole_frames(
    frames: list[Frame], data: st.DataObject
) -> None:
    (first, *_) = packed(frames)
    torn = first[: data.draw(st.integers(0, len(first) - 1))]
    try:
        heard = Unpacker().feed(torn)
    except WireError:
        return
    assert heard == frames[: len(heard)]


REQUESTS = st.builds(
    InferRequest,
    TEXTS,
    st.integers(-5, 2**40),
    st.dictionaries(TEXTS, TENSORS, max_size=4),
    TEXTS,
    SECONDS,
    st.lists(TEXTS, max_size=3).map(tuple),
    st.integers(-9, 9),
    TEXTS,
    TEXTS,
    st.none() | st.dictionaries(TEXTS, st.lists(st.integers(0, 99), max_size=3).map(tuple)),
)


@quick
@given(REQUESTS, st.floats(0, 1e6))
def test_a_request_is_read_as_it_was_written(request: InferRequest, now_s: float) -> None:
    placed, size = place(request.inputs)
    slot = Slot(LEAST_BYTES, size, 7)
    whole = np.zeros(size, np.uint8)
    write(whole, placed, request.inputs)
    sent = decode_request(encode_request(request, now_s, slot, placed))
    assert sent.slot == slot
    assert sent.deadline_s == now_s + request.timeout_s
    _assert_same_arrays(read(whole, sent.placed), request.inputs)
    received = sent.request(request.inputs, sent.timeout_s)
    for field in fields(InferRequest):
        assert getattr(received, field.name) == getattr(request, field.name)


@quick
@given(st.dictionaries(TEXTS, TENSORS, max_size=4), TEXTS, st.floats(0, 1e6), st.integers(0, 99))
def test_an_answer_is_read_as_it_was_written(
    outputs: dict[str, Array], text: str, seconds: float, rows: int
) -> None:
    response = InferResponse(text, text, outputs, Timing(seconds, seconds, rows, seconds))
    heard = decode_answer(encode_answer(response))
    assert (heard.model, heard.version, heard.timing) == (text, text, response.timing)
    _assert_same_arrays(heard.outputs, outputs)


@quick
@given(st.sampled_from(Code), TEXTS, st.none() | st.floats(0, 1e6), TEXTS)
def test_a_refusal_is_read_as_it_was_written(
    code: Code, detail: str, retry_after_s: float | None, version: str
) -> None:
    error = ServingError(code, detail, retry_after_s)
    error.version = version
    heard = decode_refusal(encode_refusal(error))
    assert (heard.code, heard.detail, heard.retry_after_s) == (code, detail, retry_after_s)
    assert heard.version == version


@quick
@given(CLIENTS_TEXTS, st.sampled_from([0, 7, 2**70]), st.none() | st.sampled_from(Code))
def test_records_are_heard_whatever_a_client_calls_itself(
    text: str, rows: int, code: Code | None
) -> None:
    record = Answered("http", text, rows, code, 0.5, text, text, operation=text)
    (heard,) = decode_records(encode_records([record]))
    assert isinstance(heard, Answered)
    assert heard.model == text.encode("utf-8", "replace").decode()
    assert (heard.code, heard.rows) == (code, min(rows, 2**63 - 1))


def _dumped(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return b""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**53) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=14) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=30,
)


@pytest.mark.parametrize(
    "decode",
    [
        decode_request,
        decode_answer,
        decode_refusal,
        partial(decode_state, tokens=Tokens()),
        lambda x: [*decode_records(x)],
    ],
)
@quick
@given(payload=st.binary(max_size=200) | JSON.map(_dumped))
def test_any_payload_is_understood_or_refused(
    decode: Callable[[bytes], object], payload: bytes
) -> None:
    with contextlib.suppress(WireError):
        decode(payload)


@quick
@given(st.lists(st.integers(1, 3 * LEAST_BYTES) | st.none(), max_size=60), st.data())
def test_blocks_never_overlap_and_all_come_back(
    wanted: list[int | None], data: st.DataObject
) -> None:
    size = 16 * LEAST_BYTES
    blocks = Blocks(size)
    taken: dict[int, int] = {}
    for want in wanted:
        if want is None:
            if taken:
                offset = data.draw(st.sampled_from(sorted(taken)))
                assert blocks.give(offset) == taken.pop(offset)
            continue
        found = blocks.take(want)
        if found is None:
            assert taken, "everything is free"
            continue
        assert _apart([*taken.items(), (found, block_bytes(want))])
        assert found + want <= size
        taken[found] = block_bytes(want)
        assert blocks.taken_bytes == sum(taken.values())
    for offset in taken:
        blocks.give(offset)
    assert blocks.take(size) == 0


@quick
@given(st.integers(1, MAX_PROCESSES), st.data(), st.integers(1, 20))
def test_a_connection_id_leads_back_to_the_process_that_made_it(
    count: int, data: st.DataObject, length: int
) -> None:
    number = data.draw(st.integers(0, count - 1))
    own = Steering(number, count).connection_id(length)
    assert len(own) == length
    assert process_of(bytes([0x40]) + own + b"rest", count) == number
    assert process_of(bytes([0xC0, 0, 0, 0, 1, length]) + own + b"rest", count) == number


def _apart(blocks: list[tuple[int, int]]) -> bool:
    ordered = sorted(blocks)
    return all(a + size <= b for (a, size), (b, _) in itertools.pairwise(ordered))


def _assert_same_arrays(heard: object, said: Mapping[str, Array]) -> None:
    assert isinstance(heard, dict)
    assert list(heard) == list(said)
    for name, array in said.items():
        assert heard[name].dtype == array.dtype
        np.testing.assert_array_equal(heard[name], array)
