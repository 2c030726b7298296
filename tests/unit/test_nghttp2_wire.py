"""gRPC's rules on the wire, as no library's client would break them."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator

import pytest

from scheduler.errors import Code
from tests.fixtures.grpc_calls import Served, grpc_options, grpc_serving, scores
from tests.fixtures.raw_grpc import PREDICT, RawGrpc, framed, head, raw_grpc
from tests.fixtures.wire import Sample, sample

BODY = sample().message().SerializeToString()
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
OK, INVALID, EXHAUSTED, UNIMPLEMENTED = 0, 3, 8, 12
EVERY_STREAM = 2**31 - 1


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A fake model on the engine."""
    async with grpc_serving(grpc_options(engine="nghttp2", max_message_bytes=100_000)) as running:
        running.serving.gate.open()
        yield running


@pytest.fixture
async def raw(served: Served) -> AsyncIterator[RawGrpc]:
    """A raw connection to ``served``."""
    async with raw_grpc(served.client.port) as client:
        yield client


async def test_an_answer_is_a_head_a_message_and_trailers(raw: RawGrpc) -> None:
    answer = await raw.answer(raw.ask(data=framed(BODY)))
    assert answer.fields[b":status"] == b"200"
    assert answer.fields[b"content-type"] == b"application/grpc"
    assert answer.fields[b"grpc-accept-encoding"] == b"identity,deflate,gzip"
    assert answer.status == OK
    assert answer.body[:5] == framed(answer.body[5:])[:5]
    assert len(scores(answer.body[5:])) == 2


async def test_a_call_that_crosses_the_first_goaway_is_served(served: Served, raw: RawGrpc) -> None:
    await raw.answer(raw.ask(data=framed(BODY)))
    stopping = asyncio.create_task(served.transport.stop(grace_s=600))
    await asyncio.sleep(0)  # it has begun, and nothing is read here before the call is on the wire
    assert (await raw.answer(raw.ask(data=framed(BODY)))).status == OK
    assert [goaway.last_stream_id for goaway in raw.goaways] == [EVERY_STREAM]
    await raw.ended()
    await stopping


async def test_a_request_may_come_byte_by_byte(raw: RawGrpc) -> None:
    stream = raw.ask(ended=False)
    for position in range(len(framed(BODY))):
        raw.h2.send_data(stream, framed(BODY)[position : position + 1])
        raw.flush()
    raw.h2.end_stream(stream)
    raw.flush()
    assert (await raw.answer(stream)).status == OK


async def test_a_request_may_end_with_trailers(raw: RawGrpc) -> None:
    stream = raw.ask(data=framed(BODY), ended=False)
    raw.h2.send_trailers(stream, [(b"x-checksum", b"1")])
    raw.flush()
    assert (await raw.answer(stream)).status == OK


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", None)],
)
async def test_a_message_may_be_compressed(raw: RawGrpc, coding: str, pack: object) -> None:
    data = framed(pack(BODY), flag=1) if callable(pack) else framed(BODY)
    fields = head(PREDICT, (b"grpc-encoding", coding.encode()))
    assert (await raw.answer(raw.ask(fields, data))).status == OK


@pytest.mark.parametrize(
    ("data", "coding", "status", "words"),
    [
        (framed(BODY), b"br", UNIMPLEMENTED, b"grpc-encoding: 'br' is none of identity"),
        (framed(BODY, flag=1), b"identity", INVALID, b"compressed"),
        (framed(BODY, flag=1), b"gzip", INVALID, b"not gzip"),
        (framed(gzip.compress(BODY)[:-9], flag=1), b"gzip", INVALID, b"cut off"),
        (framed(gzip.compress(bytes(100_001)), flag=1), b"gzip", EXHAUSTED, b"max_message_bytes"),
        (framed(BODY, flag=2), b"identity", INVALID, b"flag must be 0 or 1, got 2"),
        (framed(BODY)[:-1], b"identity", INVALID, b"bytes into a message of"),
        (framed(BODY)[:3], b"identity", INVALID, b"3 bytes into a message"),
        (b"", b"identity", UNIMPLEMENTED, b"takes one request message, got none"),
        (framed(BODY) * 2, b"identity", UNIMPLEMENTED, b"got more than one"),
        (b"\0\0\1\x86\xa1", b"identity", EXHAUSTED, b"100001 bytes, the limit is 100000"),
    ],
    ids=[
        "unknown coding",
        "coding not said",
        "not gzip",
        "gzip cut off",
        "unpacks too large",
        "odd flag",
        "message cut off",
        "prefix cut off",
        "none",
        "two",
        "too large",
    ],
)
async def test_a_broken_message_is_refused_by_name(
    served: Served, raw: RawGrpc, data: bytes, coding: bytes, status: int, words: bytes
) -> None:
    fields = head(PREDICT, (b"grpc-encoding", coding))
    answer = await raw.answer(raw.ask(fields, data))
    assert answer.status == status
    assert words in answer.fields[b"grpc-message"]
    assert not answer.body
    assert served.observed.answers[0].code is not Code.INTERNAL  # those are logged as our errors
    assert len(served.observed.answers) == 1
    assert (await raw.answer(raw.ask(data=framed(BODY)))).status == OK


@pytest.mark.parametrize("size_bytes", [1, 99_999, 100_000])
async def test_a_compressed_message_may_unpack_to_the_limit(raw: RawGrpc, size_bytes: int) -> None:
    fields = head(PREDICT, (b"grpc-encoding", b"gzip"))
    answer = await raw.answer(raw.ask(fields, framed(gzip.compress(bytes(size_bytes)), flag=1)))
    assert b"not a predictor.PredictionRequest" in answer.fields[b"grpc-message"]


async def test_messages_of_a_stream_may_be_compressed(raw: RawGrpc) -> None:
    fields = head(STREAM, (b"grpc-encoding", b"gzip"))
    good, bad = framed(gzip.compress(b"\xff"), flag=1), framed(b"nonsense", flag=1)
    answer = await raw.answer(raw.ask(fields, good + framed(b"\xff")))
    assert answer.status == OK
    assert answer.body.count(b"message is not an inference.ModelInferRequest") == 2
    answer = await raw.answer(raw.ask(fields, bad))
    assert answer.status == INVALID
    assert b"not gzip" in answer.fields[b"grpc-message"]


async def test_a_message_over_the_limit_is_refused_before_it_is_sent(raw: RawGrpc) -> None:
    stream = raw.ask(data=(100_001).to_bytes(5, "big"), ended=False)
    answer = await raw.answer(stream)
    assert answer.status == EXHAUSTED
    assert answer.reset == 0  # no error: send no more


@pytest.mark.parametrize(
    ("fields", "status", "more"),
    [
        (head(method=b"GET"), b"405", {b"allow": b"POST"}),
        ([*head()[:-1], (b"content-type", b"application/json")], b"415", {}),
        (head()[:-1], b"415", {}),
    ],
)
async def test_what_is_no_grpc_call_has_an_http_answer(
    raw: RawGrpc, fields: list[tuple[bytes, bytes]], status: bytes, more: dict[bytes, bytes]
) -> None:
    answer = await raw.answer(raw.ask(fields))
    assert answer.fields[b":status"] == status
    assert answer.fields.items() >= more.items()
    assert b"grpc-status" not in answer.fields


@pytest.mark.parametrize("content_type", [b"application/grpc+proto", b"application/grpc;x=y"])
async def test_a_content_type_may_say_more(raw: RawGrpc, content_type: bytes) -> None:
    fields = [*head()[:-1], (b"content-type", content_type)]
    assert (await raw.answer(raw.ask(fields, framed(BODY)))).status == OK


@pytest.mark.parametrize("text", [b"", b"5", b"S", b"-1S", b"1.5S", b"123456789S", b"1x"])
async def test_a_broken_timeout_is_refused(raw: RawGrpc, text: bytes) -> None:
    answer = await raw.answer(raw.ask(head(PREDICT, (b"grpc-timeout", text)), framed(BODY)))
    assert answer.status == INVALID
    assert answer.fields[b"grpc-message"].startswith(b"grpc-timeout: expected 1 to 8 digits")


@pytest.mark.parametrize("text", [b"1H", b"1M", b"9S", b"9999m", b"9999999u", b"99999999n"])
async def test_a_timeout_has_a_unit(raw: RawGrpc, text: bytes) -> None:
    answer = await raw.answer(raw.ask(head(PREDICT, (b"grpc-timeout", text)), framed(BODY)))
    assert answer.status == OK


async def test_a_deadline_that_is_over_is_told(served: Served, raw: RawGrpc) -> None:
    answer = await raw.answer(raw.ask(head(PREDICT, (b"grpc-timeout", b"0n")), framed(BODY)))
    assert answer.status == 4
    assert served.observed.answers[0].code is Code.DEADLINE_EXCEEDED


async def test_binary_metadata_must_be_base64(raw: RawGrpc) -> None:
    for value, status in ((b"AAEC", OK), (b"AAE", OK), (b"AAE=", OK), (b"!", INVALID)):
        fields = head(PREDICT, (b"trace-bin", value))
        assert (await raw.answer(raw.ask(fields, framed(BODY)))).status == status


async def test_a_details_odd_characters_are_percent_encoded(raw: RawGrpc) -> None:
    fields = head(PREDICT, (b"narsil-model", b"50%~ ok"))
    answer = await raw.answer(raw.ask(fields, framed(BODY)))
    assert answer.fields[b"grpc-message"].startswith(b"no model '50%25~ ok'")


async def test_an_unknown_method_is_unimplemented(raw: RawGrpc) -> None:
    answer = await raw.answer(raw.ask(head("/predictor.Predictor/Other"), framed(BODY)))
    assert answer.status == UNIMPLEMENTED
    assert answer.fields[b":status"] == b"200"


async def test_metadata_over_the_limit_cost_the_call_alone(raw: RawGrpc) -> None:
    fields = head(PREDICT, (b"x-much", b"m" * 20_000))
    answer = await raw.answer(raw.ask(fields, framed(BODY)))
    assert answer.status == EXHAUSTED
    assert b"the limit is 16384" in answer.fields[b"grpc-message"]
    assert (await raw.answer(raw.ask(data=framed(BODY)))).status == OK


async def test_a_client_that_resets_a_call_at_once_does_no_harm(raw: RawGrpc) -> None:
    streams = [
        raw.h2.send_request(fields)
        for fields in (head(), head("/no/Method"), head(method=b"GET"))
        for _ in range(10)
    ]
    wire = raw.h2.data_to_send()
    for stream in streams:
        raw.h2.reset_stream(stream)
    raw.write(wire + raw.h2.data_to_send())
    assert (await raw.answer(raw.ask(data=framed(BODY)))).status == OK


async def test_an_answer_passes_through_a_small_window(served: Served) -> None:
    rows = 500
    many = Sample(dense=[[1.0] * 3] * rows, bags={"user": [[]] * rows, "item": [[]] * rows})
    async with raw_grpc(served.client.port, window_bytes=100) as raw:
        answer = await raw.answer(raw.ask(data=framed(many.message().SerializeToString())))
        assert answer.status == OK
        assert len(scores(answer.body[5:])) == rows
