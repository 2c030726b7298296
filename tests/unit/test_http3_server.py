"""HTTP/3 on a real socket: answers, aborted and broken requests, bounds."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, FrameType, encode_frame
from aioquic.quic.events import ConnectionTerminated, StopSendingReceived, StreamReset

from scheduler.errors import Code
from tests.fixtures.raw_http3 import RawClient, head, raw_client
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import (
    PROTOBUF,
    http3_client,
    http3_served,
    json_body,
    problem,
    protobuf_body,
)
from transports.codecs.predictor_client import decode_response
from transports.http3.bridge import Headers
from transports.http3.client import Http3Client
from transports.http3.server import Http3Transport
from transports.http3.session import MAX_FRAME_BYTES


@pytest.fixture
def engine() -> StubEngine:
    return StubEngine()


@pytest.fixture
async def transport(engine: StubEngine, certificates: Path) -> AsyncIterator[Http3Transport]:
    async with http3_served(engine, certificates, max_request_bytes=100_000) as running:
        yield running


@pytest.fixture
async def client(transport: Http3Transport) -> AsyncIterator[Http3Client]:
    async with http3_client(transport) as connected:
        yield connected


@pytest.fixture
async def raw(transport: Http3Transport) -> AsyncIterator[RawClient]:
    async with raw_client(transport) as connected:
        yield connected


async def still_serves(raw: RawClient) -> None:
    """The connection must be as good as before."""
    assert await raw.status(raw.request(head(), json_body([0.5]))) == 200


async def test_predict_answers_as_over_http_1(client: Http3Client, engine: StubEngine) -> None:
    headers = {"content-type": PROTOBUF, "x-request-id": "job-7"}
    answer = await client.post("/v1/predict", protobuf_body([0.25, 0.5]), headers)
    assert answer.status == 200
    assert answer.headers["x-request-id"] == "job-7"
    assert answer.headers["server-timing"] == "queue;dur=0.120, gather;dur=0.050, compute;dur=0.900"
    assert answer.headers["server"] == "narsil"
    assert decode_response(answer.body)["default"].tolist() == [0.25, 0.5]
    (record,) = await engine.watcher.wait_for(1)
    assert (record.transport, record.code, record.rows) == ("http3", None, 2)


async def test_the_pages_are_served_too(client: Http3Client) -> None:
    assert (await client.get("/readyz")).body == b'{"ready":true}'
    problem((await client.get("/nope")).body, 404)


async def test_many_requests_at_once_each_get_their_own_answer(client: Http3Client) -> None:
    async def ask(score: float) -> float:
        answer = await client.post(
            "/v1/predict", protobuf_body([score]), {"content-type": PROTOBUF}
        )
        return float(decode_response(answer.body)["default"][0])

    scores = [float(score) for score in range(300)]
    assert await asyncio.gather(*map(ask, scores)) == scores


async def test_a_cancelled_request_is_cancelled_and_its_neighbours_are_not(
    client: Http3Client, engine: StubEngine
) -> None:
    engine.gate.clear()
    leaver = asyncio.create_task(client.post("/v1/predict", json_body([1.0]), {}))
    await engine.entered.wait()
    neighbour = asyncio.create_task(client.post("/v1/predict", json_body([2.0]), {}))
    leaver.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await leaver
    await engine.left.wait()
    engine.gate.set()
    assert (await neighbour).status == 200
    assert [request.inputs["float_features"][0, 0] for request in engine.cancelled] == [1.0]


async def test_a_lost_connection_cancels_all_its_requests(
    transport: Http3Transport, engine: StubEngine
) -> None:
    engine.gate.clear()
    async with raw_client(transport) as raw:
        for score in range(3):
            raw.request(head(), json_body([float(score)]))
        await engine.admitted(3)
    records = await engine.watcher.wait_for(3)
    assert {record.code for record in records} == {Code.CANCELLED}


async def test_a_client_that_resets_its_upload_is_recorded_as_cancelled(
    raw: RawClient, engine: StubEngine
) -> None:
    stream_id = raw.request(head(content_length="100"), b"half", end=False)
    raw.transmit_now()
    raw.quic.reset_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
    raw.transmit()
    reset = await raw.wait_for(StreamReset)
    assert reset.error_code == ErrorCode.H3_REQUEST_CANCELLED
    (record,) = await engine.watcher.wait_for(1)
    assert record.code is Code.CANCELLED
    await still_serves(raw)


@pytest.mark.parametrize("body", [None, json_body([0.5])], ids=["get", "post"])
async def test_a_request_whose_answer_is_not_wanted_is_not_begun(
    raw: RawClient, engine: StubEngine, caplog: pytest.LogCaptureFixture, body: bytes | None
) -> None:
    stream_id = raw.quic.get_next_available_stream_id()
    raw.http.send_headers(stream_id, head() if body else head("GET", "/v1/models"), not body)
    if body:
        raw.http.send_data(stream_id, body, end_stream=True)
    # It goes out in front of what the stream has to say.
    raw.quic.stop_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
    raw.transmit()
    await raw.wait_for(StreamReset, lambda reset: reset.stream_id == stream_id)
    await still_serves(raw)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(engine.requests) == 1  # the last


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_too_large_is_answered_and_its_rest_not_wanted(
    raw: RawClient, declared: bool
) -> None:
    headers = head(content_length="200000") if declared else head()
    stream_id = raw.request(headers, bytes(150_000), end=False)
    problem(await raw.answer(stream_id), 413)
    stop = await raw.wait_for(StopSendingReceived)
    assert (stop.stream_id, stop.error_code) == (stream_id, ErrorCode.H3_NO_ERROR)
    await still_serves(raw)


async def test_a_client_that_sends_on_after_its_answer_harms_nobody(raw: RawClient) -> None:
    stream_id = raw.request(head(content_length="200000"), b"", end=False)
    problem(await raw.answer(stream_id), 413)
    await raw.wait_for(StopSendingReceived)
    await still_serves(raw)


@pytest.mark.parametrize(
    "headers",
    [
        [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/")],
        [(b":method", b"GET"), (b":authority", b"localhost")],
        [(b":authority", b"localhost"), (b":path", b"/")],
        [*head("GET", "/livez"), (b":path", b"/twice")],
        [*head("GET", "/livez"), (b"Upper", b"case")],
        [*head("GET", "/livez"), (b"connection", b"close")],
        [*head("GET", "/livez"), (b"content-length", b"-1")],
        [*head("GET", "/livez"), (b"content-length", b"5")],
        [*head("GET", "/livez"), (b"a", b"line\r\nbreak")],
        head("GET", "livez"),
    ],
)
async def test_a_malformed_head_costs_its_own_stream_only(raw: RawClient, headers: Headers) -> None:
    stream_id = raw.request(headers)
    reset = await raw.wait_for(StreamReset)
    assert (reset.stream_id, reset.error_code) == (stream_id, ErrorCode.H3_MESSAGE_ERROR)
    await still_serves(raw)


@pytest.mark.parametrize("declared", ["1", "1000"])
async def test_a_body_of_another_length_than_declared_is_malformed(
    raw: RawClient, engine: StubEngine, declared: str
) -> None:
    raw.request(head(content_length=declared), json_body([0.5]))
    reset = await raw.wait_for(StreamReset)
    assert reset.error_code == ErrorCode.H3_MESSAGE_ERROR
    assert not engine.requests
    await still_serves(raw)


async def test_a_request_that_ends_before_its_head_is_reset(raw: RawClient) -> None:
    raw.stream(b"", end=True)
    reset = await raw.wait_for(StreamReset)
    assert reset.error_code == ErrorCode.H3_REQUEST_INCOMPLETE
    await still_serves(raw)


async def test_trailers_are_taken_and_ignored(raw: RawClient) -> None:
    stream_id = raw.request(head(), json_body([0.5]), end=False)
    raw.http.send_headers(stream_id, [(b"checksum", b"1")], end_stream=True)
    raw.transmit()
    assert await raw.status(stream_id) == 200


@pytest.mark.parametrize("frame", [FrameType.HEADERS, FrameType.PUSH_PROMISE, FrameType.SETTINGS])
async def test_a_frame_without_end_closes_the_connection(
    raw: RawClient, engine: StubEngine, frame: FrameType
) -> None:
    beginning = encode_uint_var(frame) + encode_uint_var(2**40)
    raw.stream(beginning + bytes(2 * MAX_FRAME_BYTES), end=False)
    end = await raw.wait_for(ConnectionTerminated)
    assert end.error_code in {ErrorCode.H3_EXCESSIVE_LOAD, ErrorCode.H3_FRAME_UNEXPECTED}
    assert not engine.requests


async def test_data_before_a_head_closes_the_connection(raw: RawClient) -> None:
    raw.stream(encode_frame(FrameType.DATA, b"x"), end=True)
    end = await raw.wait_for(ConnectionTerminated)
    assert end.error_code == ErrorCode.H3_FRAME_UNEXPECTED


async def test_an_unexpected_exception_is_logged_and_costs_one_stream(
    raw: RawClient, engine: StubEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.failure = lambda: RuntimeError("secret")
    stream_id = raw.request(head(), json_body([0.5]))
    document = problem(await raw.answer(stream_id), 500)
    assert "secret" not in document["detail"]
    assert "secret" in caplog.text
    engine.failure = None
    await still_serves(raw)


async def test_stray_datagrams_are_ignored(transport: Http3Transport, client: Http3Client) -> None:
    loop = asyncio.get_running_loop()
    stray, _ = await loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, remote_addr=("127.0.0.1", transport.port)
    )
    for datagram in (b"", b"\x00", b"\xc0", b"\xff" * 1200, b"GET / HTTP/1.1", bytes(65_000)):
        stray.sendto(datagram)
    stray.close()
    assert (await client.get("/livez")).status == 200


async def test_connections_over_the_limit_are_not_taken_and_others_live_on(
    engine: StubEngine, certificates: Path
) -> None:
    async with (
        http3_served(engine, certificates, max_connections=1) as transport,
        raw_client(transport) as first,
    ):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), raw_client(transport):
                pass
        assert await first.status(first.request(head("GET", "/livez"))) == 200
