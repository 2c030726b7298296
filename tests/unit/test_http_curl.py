"""The real curl against the HTTP/1.1 transport."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import (
    PROTOBUF,
    http_served,
    json_body,
    problem,
    protobuf_body,
)
from transports.codecs.predictor_client import decode_response

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


async def curl(*arguments: str) -> tuple[int, bytes]:
    """Run curl; return the status it saw and the body."""
    process = await asyncio.create_subprocess_exec(
        "curl", "--silent", "--show-error", "--max-time", "60",
        "--write-out", "\n%{http_code}", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await process.communicate()
    assert process.returncode == 0, errors
    body, _, status = output.rpartition(b"\n")
    return int(status), body


async def test_curl_with_nothing_but_data_is_served() -> None:
    async with http_served(StubEngine()) as url:
        status, _ = await curl("--data", json_body([0.5]).decode(), f"{url}/v1/predict")
    assert status == 200


async def test_curl_posts_a_file_of_protobuf_as_it_is(tmp_path: Path) -> None:
    request, scores = tmp_path / "request.bin", tmp_path / "scores.bin"
    request.write_bytes(protobuf_body([0.5, 2.0]))
    async with http_served(StubEngine()) as url:
        status, _ = await curl(
            "--header", f"content-type: {PROTOBUF}", "--data-binary", f"@{request}",
            "--output", str(scores), f"{url}/v1/predict",
        )  # fmt: skip
    assert status == 200
    assert decode_response(scores.read_bytes())["default"].tolist() == [0.5, 2.0]


@pytest.mark.parametrize(
    "headers",
    [[], ["-H", "expect:"], ["-H", "transfer-encoding: chunked"],
     ["-H", "transfer-encoding: chunked", "-H", "expect:"]],
    ids=["expect", "at once", "chunked and expect", "chunked at once"],
)  # fmt: skip
async def test_curl_reads_the_413_for_65_mebibytes(tmp_path: Path, headers: list[str]) -> None:
    upload = tmp_path / "upload"
    with upload.open("wb") as file:
        file.truncate(65 * 2**20)
    async with http_served(StubEngine()) as url:
        status, body = await curl(*headers, "--data-binary", f"@{upload}", f"{url}/v1/predict")
    assert status == 413
    assert "67108864 bytes (max_request_bytes)" in problem(body, 413)["detail"]


async def test_curl_that_offers_http_2_is_served_over_http_1_with_its_body() -> None:
    body = json_body([0.5]).decode()
    async with http_served(StubEngine()) as url:
        status, _ = await curl("--http2", "--data", body, f"{url}/v1/predict")
    assert status == 200
