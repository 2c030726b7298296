"""Conventions that hold on every transport: names of requests, traces, and words at parting."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest

from backends.fake import FakeBackend
from scheduler.errors import Code
from tests.fixtures.behind_front_ends import MakeFrontEnds
from tests.fixtures.oip_grpc import OipClient
from tests.fixtures.serving import Served, serving
from transports.http3.client import Http3Client
from transports.proto import open_inference_pb2 as oip

TRANSPORTS = ["http", "http3", "grpc"]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
# Not a request in any encoding: what comes back is an error.
BROKEN = b"\xff\xff"


@pytest.fixture
async def running(certificates: Path, front_ends: MakeFrontEnds) -> AsyncIterator[Served]:
    async with serving(
        FakeBackend(FakeBackend.Options()), certificates, front_ends=front_ends()
    ) as served:
        yield served


async def send_broken(served: Served, transport: str, **fields: str) -> dict[str, str]:
    """Send what cannot be decoded; return the headers or trailers of the refusal."""
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    if transport == "grpc":
        async with grpc.aio.insecure_channel(urlsplit(served.urls["grpc"]).netloc) as channel:
            predict = channel.unary_unary("/predictor.Predictor/Predict")
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await predict(BROKEN, metadata=tuple(headers.items()))
            return dict(refusal.value.trailing_metadata() or ())
    if transport == "http":
        async with httpx.AsyncClient(base_url=served.urls["http"], timeout=60) as client:
            return dict((await client.post("/v1/predict", content=BROKEN, headers=headers)).headers)
    port = urlsplit(served.urls["http3"]).port or 0
    async with Http3Client.connect("localhost", port, served.ca) as http3:
        return dict((await http3.post("/v1/predict", BROKEN, headers)).headers)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_refusal_is_reported_with_its_trace_and_its_own_name(
    running: Served, transport: str
) -> None:
    headers = await send_broken(running, transport, traceparent=TRACEPARENT, x_request_id="mine")
    assert headers["x-request-id"] == "mine"
    await running.settled()
    (record,) = running.recorder.answers
    assert record.code is Code.INVALID_REQUEST
    assert (record.request_id, record.trace_id) == ("mine", TRACE)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_request_without_a_name_goes_by_its_trace(running: Served, transport: str) -> None:
    headers = await send_broken(running, transport, traceparent=TRACEPARENT)
    assert headers["x-request-id"] == TRACE


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_request_with_neither_is_given_a_name(running: Served, transport: str) -> None:
    headers = await send_broken(running, transport, traceparent=f"00-{'0' * 32}-{'1' * 16}-01")
    await running.settled()
    (record,) = running.recorder.answers
    assert headers["x-request-id"] == record.request_id
    assert record.request_id.strip("0")
    assert record.trace_id == ""


@pytest.mark.parametrize(
    "path", ["/livez", "/readyz", "/v1/models", "/v2", "/v2/models/fake", "/docs"]
)
async def test_every_page_carries_the_name_of_its_request(running: Served, path: str) -> None:
    async with httpx.AsyncClient(base_url=running.urls["http"], timeout=60) as client:
        answer = await client.get(path, headers={"x-request-id": "mine"})
        assert answer.status_code == 200
        assert answer.headers.get_list("x-request-id") == ["mine"]
        one, other = [(await client.get(path)).headers["x-request-id"] for _ in range(2)]
        assert one != other


async def test_every_kind_of_grpc_call_carries_the_name_of_its_request(running: Served) -> None:
    named: dict[str, Any] = {"metadata": (("x-request-id", "mine"),)}
    async with grpc.aio.insecure_channel(urlsplit(running.urls["grpc"]).netloc) as channel:
        call = OipClient(channel).call("ServerMetadata", oip.ServerMetadataRequest(), **named)
        await call
        assert dict(await call.trailing_metadata())["x-request-id"] == "mine"
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(**named)
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert dict(await stream.trailing_metadata())["x-request-id"] == "mine"


async def test_while_draining_clients_are_sent_elsewhere_and_still_served(running: Served) -> None:
    port = urlsplit(running.urls["http3"]).port or 0
    https, trusted = f"https://localhost:{port}", ssl.create_default_context(cafile=running.ca)
    async with (
        httpx.AsyncClient(base_url=running.urls["http"], timeout=60) as plain,
        httpx.AsyncClient(base_url=https, verify=trusted, timeout=60) as secure,
        Http3Client.connect("localhost", port, running.ca) as quic,
    ):
        assert "connection" not in (await plain.get("/livez")).headers
        assert (await secure.get("/livez")).headers["alt-svc"].startswith("h3=")
        assert "alt-svc" not in (await quic.get("/livez")).headers
        running.engine.drain()
        for client in (plain, secure):
            answer = await client.get("/livez")
            assert answer.status_code == 200
            assert answer.headers["connection"] == "close"
        assert answer.headers["alt-svc"] == "clear"
        assert (await quic.get("/livez")).headers["alt-svc"] == "clear"
