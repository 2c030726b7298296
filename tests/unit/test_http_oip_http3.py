"""The Open Inference Protocol over HTTP/3: the same app, so a few cases of each kind."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import niquests
import numpy as np
import pytest

from scheduler.errors import Code
from scheduler.types import Array
from tests.fixtures.oip_http import JSON_BYTES, binary_body, read_answer
from tests.fixtures.requests import DENSE, LENGTHS, VALUES
from tests.fixtures.stub_engine import DENSE_FEATURES, SPEC, StubEngine
from tests.fixtures.stub_serving import http3_client, http3_served, problem
from transports.http3.client import Http3Client
from transports.http3.server import Http3Transport

INFER = f"/v2/models/{SPEC.name}/infer"
ARRAYS: dict[str, Array] = {
    DENSE: np.full((2, DENSE_FEATURES), 0.25, np.float32),
    LENGTHS: np.ones((2, 2), np.int32),
    VALUES: np.ones(4, np.int64),
}


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


@pytest.mark.parametrize("path", ["/v2", "/v2/health/ready", f"/v2/models/{SPEC.name}/config"])
async def test_pages_are_served(client: Http3Client, path: str) -> None:
    answer = await client.get(path)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")


async def test_binary_tensors_go_both_ways(client: Http3Client, engine: StubEngine) -> None:
    headers, body = binary_body(ARRAYS, id="7", parameters={"binary_data_output": True})
    answer = await client.post(INFER, body, headers)
    found = read_answer(answer.headers, answer.body)
    assert found.outputs["default"].tolist() == [[0.25], [0.25]]
    assert found.document["id"] == answer.headers["x-request-id"] == "7"
    (record,) = await engine.watcher.wait_for(1)
    assert record.transport == "http3"


async def test_a_bomb_is_refused_and_the_connection_goes_on(client: Http3Client) -> None:
    bomb = gzip.compress(bytes(1_000_000))
    answer = await client.post(INFER, bomb, {"content-encoding": "gzip", JSON_BYTES: "2"})
    assert "100000 bytes (max_request_bytes)" in problem(answer.body, 413)["detail"]
    assert (await client.get("/v2/health/live")).status == 200


async def test_an_abandoned_stream_cancels_its_request(
    client: Http3Client, engine: StubEngine
) -> None:
    engine.gate.clear()
    headers, body = binary_body(ARRAYS)
    asking = asyncio.create_task(client.post(INFER, body, headers))
    await engine.entered.wait()
    asking.cancel()
    await engine.left.wait()
    (record,) = await engine.watcher.wait_for(1)
    assert record.code is Code.CANCELLED


async def test_niquests_is_served(transport: Http3Transport) -> None:
    headers, body = binary_body(ARRAYS, parameters={"binary_data_output": True})
    assert transport.certificate is not None
    async with niquests.AsyncSession(disable_http1=True, disable_http2=True) as session:
        answer = await session.post(
            f"https://localhost:{transport.port}{INFER}",
            data=body,
            headers=headers,
            verify=str(transport.certificate.path),
        )
    assert (answer.status_code, answer.http_version) == (200, 30)
    assert answer.content is not None
    found = read_answer({k.lower(): str(v) for k, v in answer.headers.items()}, answer.content)
    assert found.outputs["default"].tolist() == [[0.25], [0.25]]
