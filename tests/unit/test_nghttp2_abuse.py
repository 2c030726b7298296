"""What a hostile client can cost is bounded, and others do not feel it."""

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator

import ngh2
import pytest

from tests.fixtures.grpc_calls import Served, grpc_options, grpc_serving, scores
from tests.fixtures.raw_grpc import PREDICT, Answer, RawGrpc, framed, head, raw_grpc
from tests.fixtures.wire import Sample, sample
from transports.grpc.nghttp2 import limits

BODY = sample().message().SerializeToString()
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
CALM = ngh2.ErrorCode.ENHANCE_YOUR_CALM


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """Return one HTTP/2 frame."""
    length = len(payload).to_bytes(3, "big")
    return length + bytes([kind, flags]) + struct.pack(">I", stream) + payload


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A fake model on the engine, few calls a connection."""
    options = grpc_options(engine="nghttp2", max_message_bytes=100_000, max_concurrent_streams=50)
    async with grpc_serving(options) as running:
        running.serving.gate.open()
        yield running
        # Whatever was done to the server, another client is served.
        assert len(scores(await running.client.predict())) == 2


@pytest.fixture
async def raw(served: Served) -> AsyncIterator[RawGrpc]:
    """A raw connection to ``served`` that has been used."""
    async with raw_grpc(served.client.port) as client:
        assert (await client.answer(client.ask(data=framed(BODY)))).status == 0
        yield client


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, bytes(8)) * 5000,
        frame(SETTINGS) * 5000,
        frame(HEADERS, b"\x82", stream=3) + frame(CONTINUATION, b"\x40", stream=3) * 20,
        frame(HEADERS, b"\x40\x01a\x7f" + b"\xff" * 4, stream=3),
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        bytes(range(256)) * 10,
    ],
    ids=["pings", "settings", "continuations", "endless header", "http/1.1", "garbage"],
)
async def test_a_flood_ends_its_connection(raw: RawGrpc, flood: bytes) -> None:
    raw.write(flood)
    await raw.ended()


async def test_a_client_that_never_speaks_http2_is_cut(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.client.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    async with asyncio.timeout(60):
        assert b"HTTP/1.1" not in await reader.read()
    writer.close()


@pytest.mark.parametrize(
    "fields",
    [
        [(b"x", b"m" * 1000)] * 50,
        [(b"x%d" % number, b"") for number in range(257)],
    ],
    ids=["bytes", "count"],
)
async def test_many_header_fields_in_few_bytes_end_their_connection(
    raw: RawGrpc, fields: list[tuple[bytes, bytes]]
) -> None:
    stream = raw.ask(head(PREDICT, *fields))
    await raw.ended()
    assert not raw.answers.setdefault(stream, Answer()).fields


async def test_empty_data_without_end_is_a_flood(raw: RawGrpc) -> None:
    stream = raw.ask(ended=False)
    raw.write(frame(0, stream=stream) * (limits.MOST_IDLE_FRAMES + 1))
    await raw.ended()
    assert [goaway.error_code for goaway in raw.goaways] == [CALM]


async def test_rapid_resets_end_their_connection_and_compute_nothing(served: Served) -> None:
    async with raw_grpc(served.client.port) as raw:
        burst, _ = limits.CONFIGURATION.stream_reset_rate_limit
        for _ in range(burst + 500):
            stream = raw.h2.send_request(head())
            raw.h2.send_data(stream, framed(BODY), end_stream=True)
            raw.flush()
            raw.h2.reset_stream(stream)
            raw.flush()
        await raw.ended()
    assert len(served.serving.ran) < burst


@pytest.mark.parametrize(
    "fault",
    [framed(b"x", flag=7), b"\0\0", b"\0\xff\xff\xff\xff", framed(b"")],
    ids=["odd flag", "cut off", "too large", "none"],
)
async def test_a_fault_and_a_reset_in_one_segment_cost_no_other_call(
    fault: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        grpc_serving(grpc_options(engine="nghttp2")) as served,
        raw_grpc(served.client.port) as raw,
    ):
        other = raw.ask(data=framed(BODY))
        await served.serving.gate.began()
        stream = raw.ask(head(STREAM), framed(b"\xff"), ended=False)
        while not raw.answers.setdefault(stream, Answer()).body:  # its head has left
            await raw.receive()
        ended = frame(DATA, fault, stream=stream) + frame(DATA, flags=1, stream=stream)
        raw.write(ended + frame(RST_STREAM, struct.pack(">I", 8), stream=stream))
        served.serving.gate.open()
        assert (await raw.answer(other)).status == 0
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_calls_over_the_limit_are_refused_by_the_protocol(raw: RawGrpc) -> None:
    streams = [raw.h2.send_request(head()) for _ in range(50)]
    raw.flush()
    raw.write(_request_beyond(raw))
    await raw.ended()
    assert streams


def _request_beyond(raw: RawGrpc) -> bytes:
    """Return a call that ``raw`` itself would hold back: one more than the server takes."""
    rogue = ngh2.Connection(ngh2.Role.CLIENT)
    rogue.initiate_connection()
    rogue.data_to_send()
    stream = 0
    wire = b""
    while stream < raw.h2.next_stream_id:
        stream = rogue.send_request(head())
        wire = rogue.data_to_send()
    return wire


async def test_unfinished_messages_of_one_connection_are_bounded(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNFINISHED_BYTES", 0)
    part = (100_000).to_bytes(5, "big") + bytes(60_000)
    async with raw_grpc(served.client.port) as raw:
        first, second = raw.ask(data=part, ended=False), raw.ask(data=part, ended=False)
        answer = await raw.answer(second)
        assert answer.status == 8
        assert b"unfinished" in answer.fields[b"grpc-message"]
        raw.h2.send_data(first, bytes(40_000), end_stream=True)
        raw.flush()
        assert (await raw.answer(first)).status == 3  # zeros are no PredictionRequest


async def test_a_client_that_reads_no_answers_may_ask_only_so_much(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNSENT_BYTES", 1000)
    many = Sample(dense=[[0.0] * 3] * 400, bags={"user": [[]] * 400, "item": [[]] * 400})
    async with raw_grpc(served.client.port, window_bytes=0) as raw:
        raw.ask(data=framed(many.message().SerializeToString()))
        await served.observed.answer()
        refused = await raw.answer(raw.ask(data=framed(BODY)))
        assert refused.status == 8
        assert b"wait to be read" in refused.fields[b"grpc-message"]


async def test_a_client_that_says_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_S", 0.02)
    monkeypatch.setattr(limits, "HANDSHAKE_S", 0.05)
    async with grpc_serving(grpc_options(engine="nghttp2")) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.client.port)
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                await reader.read()  # to the end
        writer.close()


@pytest.mark.parametrize("what", ["MESSAGE_STALL_S", "WRITE_STALL_S", "SILENCE_S"])
async def test_a_client_that_keeps_the_server_waiting_is_parted_with(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SWEEP_S", 0.02)
    monkeypatch.setattr(limits, what, 0.05)
    monkeypatch.setattr(limits, "PONG_S", 0.05)
    async with grpc_serving(grpc_options(engine="nghttp2")) as served:
        served.serving.gate.open()
        async with raw_grpc(served.client.port, window_bytes=0) as raw:
            if what == "MESSAGE_STALL_S":
                answer = await raw.answer(raw.ask(data=framed(BODY)[:9], ended=False))
                assert answer.status == 4
                assert b"no part of the message came for" in answer.fields[b"grpc-message"]
            elif what == "WRITE_STALL_S":
                raw.ask(data=framed(BODY))
                await raw.ended()
            else:
                await raw.receive()
                await asyncio.sleep(0.3)  # silent: not even a pong
                await raw.ended()
                assert raw.pings


async def test_a_client_that_pings_and_reads_nothing_is_parted_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SWEEP_S", 0.02)
    monkeypatch.setattr(limits, "WRITE_STALL_S", 0.2)
    async with grpc_serving(grpc_options(engine="nghttp2")) as served:
        served.serving.gate.open()
        async with raw_grpc(served.client.port, window_bytes=0) as raw:
            raw.ask(data=framed(BODY))
            pinging = asyncio.create_task(_ping_forever(raw))
            async with asyncio.timeout(60):
                await raw.ended()
            pinging.cancel()


async def _ping_forever(raw: RawGrpc) -> None:
    while True:
        raw.write(frame(PING, bytes(8)))
        await asyncio.sleep(0.05)


async def test_a_silent_client_that_answers_pings_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_S", 0.02)
    monkeypatch.setattr(limits, "SILENCE_S", 0.03)
    async with grpc_serving(grpc_options(engine="nghttp2")) as served:
        served.serving.gate.open()
        async with raw_grpc(served.client.port) as raw:
            while raw.pings < 3:
                assert await raw.receive()
            assert (await raw.answer(raw.ask(head(PREDICT), framed(BODY)))).status == 0
