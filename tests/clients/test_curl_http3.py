"""curl 8 and curl_cffi over HTTP/3, each with an HTTP/3 library of its own."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.clients import tools
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import (
    JSON,
    PROTOBUF,
    http3_served,
    json_body,
    problem,
    protobuf_body,
)
from transports.codecs.predictor_client import decode_response
from transports.http3.server import Http3Transport

pytestmark = pytest.mark.clients

SCRIPT = Path(__file__).with_name("curl_cffi_http3.py")


@pytest.fixture
async def transport(certificates: Path) -> AsyncIterator[Http3Transport]:
    async with http3_served(StubEngine(), certificates) as running:
        yield running


async def curl(transport: Http3Transport, folder: Path, *options: str) -> list[str]:
    """Return the status and the HTTP version that curl saw; the body is left in ``body``."""
    assert transport.certificate is not None
    output = await tools.run(
        tools.program("curl"), "--silent", "--show-error", "--cacert", transport.certificate.path,
        "--output", "body", "--write-out", "%{http_code} %{http_version}", *options,
        f"https://localhost:{transport.port}/v1/predict", folder=folder,
    )  # fmt: skip
    return output.split()


@pytest.mark.parametrize("media_type", [JSON, PROTOBUF])
async def test_curl_posts_a_file_over_http3(
    transport: Http3Transport, tmp_path: Path, media_type: str
) -> None:
    body = json_body([0.5]) if media_type == JSON else protobuf_body([0.5])
    (tmp_path / "request").write_bytes(body)
    seen = await curl(
        transport, tmp_path, "--http3-only", "--data-binary", "@request",
        "--header", f"content-type: {media_type}",
    )  # fmt: skip
    assert seen == ["200", "3"]
    answer = (tmp_path / "body").read_bytes()
    if media_type == JSON:
        assert json.loads(answer)["predictions"] == {"default": [0.5]}
    else:
        assert decode_response(answer)["default"].tolist() == [0.5]


async def test_curl_reads_the_problem_over_http3(transport: Http3Transport, tmp_path: Path) -> None:
    assert await curl(transport, tmp_path, "--http3-only", "--data", "{}") == ["400", "3"]
    assert "float_features" in problem((tmp_path / "body").read_bytes(), 400)["detail"]


async def test_curl_moves_on_to_http3_by_what_alt_svc_said(
    transport: Http3Transport, tmp_path: Path
) -> None:
    told = ("--alt-svc", "alt-svc", "--data", json_body([0.5]).decode())
    assert await curl(transport, tmp_path, *told) == ["200", "1.1"]
    assert await curl(transport, tmp_path, *told) == ["200", "3"]


async def test_curl_cffi_is_served_over_http3(transport: Http3Transport, tmp_path: Path) -> None:
    assert transport.certificate is not None
    (tmp_path / "request").write_bytes(json_body([0.5]))
    output = await tools.run(
        tools.python(), SCRIPT, f"https://localhost:{transport.port}/v1/predict",
        transport.certificate.path, tmp_path / "request",
    )  # fmt: skip
    seen = json.loads(output)
    assert seen["blocking"] == seen["asyncio"] == [200, 3, {"default": [0.5]}]
    assert seen["refused"] == [400, 3]
