"""HTTP/3 clients that share no code with the server: libcurl on ngtcp2, niquests on qh3."""

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import niquests
import pycurl
import pytest

from scheduler.errors import Code
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import http3_served, json_body, problem
from transports.http3.server import Http3Transport

LIMIT_BYTES = 64 * 2**20


@pytest.fixture
def engine() -> StubEngine:
    return StubEngine()


@pytest.fixture
async def transport(engine: StubEngine, certificates: Path) -> AsyncIterator[Http3Transport]:
    async with http3_served(engine, certificates, max_json_bytes=LIMIT_BYTES) as running:
        yield running


@dataclass(frozen=True)
class CurlAnswer:
    """What libcurl saw."""

    status: int
    http_version: int
    body: bytes


def curl(transport: Http3Transport, body: bytes, declare: bool = True) -> CurlAnswer:
    """POST ``body`` over HTTP/3 and nothing else, with or without its length."""
    assert transport.certificate is not None
    handle, answer = pycurl.Curl(), io.BytesIO()
    handle.setopt(pycurl.URL, f"https://localhost:{transport.port}/v1/predict")
    handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_3ONLY)
    handle.setopt(pycurl.CAINFO, str(transport.certificate.path))
    handle.setopt(pycurl.HTTPHEADER, ["content-type: application/json"])
    handle.setopt(pycurl.WRITEDATA, answer)
    handle.setopt(pycurl.TIMEOUT, 60)
    handle.setopt(pycurl.POST, 1)
    handle.setopt(pycurl.READDATA, io.BytesIO(body))
    handle.setopt(pycurl.POSTFIELDSIZE_LARGE, len(body) if declare else -1)
    try:
        handle.perform()
        status = handle.getinfo(pycurl.RESPONSE_CODE)
        return CurlAnswer(status, handle.getinfo(pycurl.INFO_HTTP_VERSION), answer.getvalue())
    finally:
        handle.close()


async def test_libcurl_is_served(transport: Http3Transport) -> None:
    answer = await asyncio.to_thread(curl, transport, json_body([0.5]))
    assert (answer.status, answer.http_version) == (200, pycurl.CURL_HTTP_VERSION_3)
    assert b"[0.5]" in answer.body


async def test_libcurl_uploads_as_much_as_is_allowed(transport: Http3Transport) -> None:
    body = json_body([0.5])
    answer = await asyncio.to_thread(curl, transport, body + b" " * (LIMIT_BYTES - len(body)))
    assert answer.status == 200


@pytest.mark.parametrize("declare", [True, False], ids=["declared", "undeclared"])
async def test_libcurl_reads_the_413_for_65_mebibytes(
    transport: Http3Transport, declare: bool
) -> None:
    answer = await asyncio.to_thread(curl, transport, bytes(65 * 2**20), declare)
    assert answer.status == 413
    assert f"{LIMIT_BYTES} bytes (max_request_bytes)" in problem(answer.body, 413)["detail"]


async def test_libcurl_that_gives_up_cancels_its_request(
    transport: Http3Transport, engine: StubEngine
) -> None:
    engine.gate.clear()
    loop, gone = asyncio.get_running_loop(), asyncio.Event()

    def ask_and_give_up() -> None:
        assert transport.certificate is not None
        handle = pycurl.Curl()
        handle.setopt(pycurl.URL, f"https://localhost:{transport.port}/v1/predict")
        handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_3ONLY)
        handle.setopt(pycurl.CAINFO, str(transport.certificate.path))
        handle.setopt(pycurl.POSTFIELDS, json_body([0.5]))
        handle.setopt(pycurl.NOPROGRESS, 0)
        handle.setopt(pycurl.XFERINFOFUNCTION, lambda *_: len(engine.requests))
        with pytest.raises(pycurl.error):
            handle.perform()
        handle.close()
        loop.call_soon_threadsafe(gone.set)

    await asyncio.to_thread(ask_and_give_up)
    await gone.wait()
    (record,) = await engine.watcher.wait_for(1)
    assert record.code is Code.CANCELLED


async def test_niquests_is_served(transport: Http3Transport) -> None:
    assert transport.certificate is not None
    async with niquests.AsyncSession(disable_http1=True, disable_http2=True) as session:
        answer = await session.post(
            f"https://localhost:{transport.port}/v1/predict",
            data=json_body([0.5]),
            headers={"content-type": "application/json"},
            verify=str(transport.certificate.path),
        )
    assert (answer.status_code, answer.http_version) == (200, 30)
    assert answer.json()["predictions"] == {"default": [0.5]}
