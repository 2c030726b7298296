"""A real browser: pages that ask for scores over HTTP/3, from our origin and from others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from scheduler.errors import Code
from tests.clients.chromium import Chromium, PageError, chromium
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import (
    JSON,
    PROTOBUF,
    http3_served,
    http_served,
    json_body,
    problem,
    protobuf_body,
)
from transports.codecs.predictor_client import decode_response
from transports.http3.server import Http3Transport

pytestmark = pytest.mark.clients

# Posts bytes; returns the status, the bytes of the answer, and the request id if it may be read.
POST = """async (url, type, body) => {
  const answer = await fetch(
    url, {method: "POST", headers: {"content-type": type}, body: new Uint8Array(body)});
  const bytes = Array.from(new Uint8Array(await answer.arrayBuffer()));
  return [answer.status, bytes, answer.headers.get("x-request-id")];
}"""
ABANDONED = """async (url, body) => {
  const leave = new AbortController();
  window.leave = () => leave.abort();
  const headers = {"content-type": "application/json"};
  const asked = fetch(url, {method: "POST", headers, body, signal: leave.signal});
  window.asked = asked.catch(error => error.name);
}"""
PROTOCOL_OF_THE_PAGE = "async () => performance.getEntriesByType('navigation')[0].nextHopProtocol"
# Each request has a URL of its own, so that its entry is found.
PROTOCOL_OF_A_FETCH = """async (path) => {
  await (await fetch(path)).arrayBuffer();
  return performance.getEntriesByName(new URL(path, location).href)[0].nextHopProtocol;
}"""


def trusting(transport: Http3Transport, quic_port: int) -> list[str]:
    """Return flags to trust the certificate, and to speak QUIC to ``quic_port`` without asking.

    The latter also makes Chromium take, over QUIC, a certificate of no known authority for any
    port of the host.
    """
    assert transport.certificate is not None
    return [
        f"--ignore-certificate-errors-spki-list={transport.certificate.spki_sha256}",
        f"--origin-to-force-quic-on=localhost:{quic_port}",
    ]


def at(transport: Http3Transport, path: str = "/v1/predict") -> str:
    return f"https://localhost:{transport.port}{path}"


async def post(page: Chromium, url: str, media_type: str, body: bytes) -> tuple[int, bytes, Any]:
    status, answer, name = await page.evaluate(POST, url, media_type, list(body))
    return status, bytes(answer), name


async def test_a_page_is_loaded_and_fetches_scores_over_http3(
    tmp_path: Path, certificates: Path
) -> None:
    engine = StubEngine()
    async with (
        http3_served(engine, certificates) as transport,
        chromium(tmp_path, trusting(transport, transport.port)) as page,
    ):
        await page.open(at(transport, "/docs"))
        assert await page.evaluate(PROTOCOL_OF_THE_PAGE) == "h3"
        assert await page.evaluate(PROTOCOL_OF_A_FETCH, "/livez?1") == "h3"
        status, answer, _ = await post(page, "/v1/predict", JSON, json_body([0.5, 2.0]))
        assert (status, b"[0.5,2.0]" in answer) == (200, True)
        status, answer, _ = await post(page, "/v1/predict", PROTOBUF, protobuf_body([0.5]))
        assert (status, decode_response(answer)["default"].tolist()) == (200, [0.5])
        status, answer, _ = await post(page, "/v1/predict", JSON, b"{}")
        assert "float_features" in problem(answer, 400)["detail"]


async def test_a_page_over_https_moves_on_to_http3(tmp_path: Path, certificates: Path) -> None:
    async with (
        http3_served(StubEngine(), certificates) as transport,
        chromium(tmp_path, trusting(transport, quic_port=1)) as page,
    ):
        await page.open(at(transport, "/livez"))
        assert await page.evaluate(PROTOCOL_OF_THE_PAGE) == "http/1.1"
        number = 0
        # Requests go the old way until the new one stands: Alt-Svc only made it known.
        while await page.evaluate(PROTOCOL_OF_A_FETCH, f"/livez?{number}") != "h3":
            number += 1
            await asyncio.sleep(0.05)


async def test_a_page_that_gives_up_cancels_its_request(tmp_path: Path, certificates: Path) -> None:
    engine = StubEngine()
    async with (
        http3_served(engine, certificates) as transport,
        chromium(tmp_path, trusting(transport, transport.port)) as page,
    ):
        await page.open(at(transport, "/livez"))
        engine.gate.clear()
        await page.evaluate(ABANDONED, "/v1/predict", json_body([0.5]).decode())
        await engine.entered.wait()
        await page.evaluate("async () => { window.leave(); }")
        assert await page.evaluate("async () => await window.asked") == "AbortError"
        (record,) = await engine.watcher.wait_for(1)
        assert record.code is Code.CANCELLED


@pytest.mark.parametrize("wire", ["http", "http3"])
async def test_a_page_of_another_origin_may_ask_if_it_is_named(
    tmp_path: Path, certificates: Path, wire: str
) -> None:
    async with http_served(StubEngine()) as page_url:
        origin = page_url.replace("127.0.0.1", "localhost")
        async with (
            http_served(StubEngine(), cors_origins=(origin,)) as plain,
            http3_served(StubEngine(), certificates, cors_origins=(origin,)) as transport,
            chromium(tmp_path, trusting(transport, transport.port)) as page,
        ):
            await page.open(f"{origin}/livez")
            url = at(transport) if wire == "http3" else f"{plain}/v1/predict"
            status, answer, name = await post(page, url, JSON, json_body([0.5]))
            assert (status, b"[0.5]" in answer, bool(name)) == (200, True, True)
            status, answer, _ = await post(page, url, JSON, b"{}")
            assert "float_features" in problem(answer, 400)["detail"]


async def test_a_page_of_another_origin_gets_nothing_otherwise(tmp_path: Path) -> None:
    engine = StubEngine()
    async with (
        http_served(StubEngine()) as page_url,
        http_served(engine) as url,
        chromium(tmp_path, []) as page,
    ):
        await page.open(f"{page_url}/livez")
        with pytest.raises(PageError, match="Failed to fetch"):
            await post(page, f"{url}/v1/predict", JSON, json_body([0.5]))
    assert not engine.requests
