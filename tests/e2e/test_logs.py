"""The log of a real server, and what becomes of one whose log has nowhere to go."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from backends.fake import FakeBackend
from scheduler.types import ModelSpec
from tests.e2e.clients import until
from tests.e2e.process import NARSIL, narsil_serve
from tests.fixtures.requests import as_json, random_request

FAKE: ModelSpec = FakeBackend(FakeBackend.Options()).spec
THREE_ROWS, BROKEN = as_json(random_request(FAKE, 3, seed=1), FAKE), b"{"


async def ask(client: httpx.AsyncClient, body: bytes) -> int:
    return (await client.post("/v1/predict", content=body)).status_code


pytestmark = pytest.mark.timeout(60)


async def test_the_log_has_the_configuration_and_a_line_for_each_request(tmp_path: Path) -> None:
    arguments = ["--backend=fake", "--log-requests=true", "--log-format=json",
                 "--metrics-triton-names=true", "--http-metrics=true",
                 "--backend-max-batch-rows=4"]  # fmt: skip
    with narsil_serve(tmp_path, arguments, transports=("http",)) as process:
        async with httpx.AsyncClient(base_url=process.urls["http"], timeout=60) as client:
            assert await ask(client, THREE_ROWS) == 200
            assert await ask(client, BROKEN) == 400
            metrics = (await client.get("/metrics")).text
        process.terminate()
    lines: list[dict[str, Any]] = [json.loads(line) for line in process.log.splitlines()]
    start = next(line for line in lines if line["event"].startswith("configuration: "))
    for part in ("server.backend=fake", "log.requests=true", "backend.max_batch_rows=4"):
        assert part in start["event"]
    assert "scheduler." not in start["event"]
    asked = [line for line in lines if line["event"] == "request"]
    assert [(line["status"], line.get("rows")) for line in asked] == [
        ("ok", 3), ("invalid_request", 0)
    ]  # fmt: skip
    assert asked[0]["batch_rows"] == 3
    assert 'nv_inference_request_success{model="fake",version="1"} 1.0' in metrics.splitlines()


@dataclass
class Nowhere:
    """Where a server's output goes: to a file, or as the shell is told."""

    file: IO[bytes] | None
    redirection: str = ""


@pytest.fixture(
    params=["full", *(pytest.param(one, marks=pytest.mark.slow) for one in ("closed", "left"))]
)
def nowhere(request: pytest.FixtureRequest) -> Iterator[Nowhere]:
    """Standard streams that take nothing."""
    if request.param == "closed":
        yield Nowhere(None, ">&- 2>&-")
    elif request.param == "full":
        with Path("/dev/full").open("wb") as full:
            yield Nowhere(full)
    else:
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as left:
            yield Nowhere(left)


@contextmanager
def serving(folder: Path, nowhere: Nowhere) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server that listens on ``folder``/http."""
    command = (
        f"exec {NARSIL} serve --backend=fake --transports=http --http-host= --http-unix-path=http"
        f" --log-requests=true --server-drain-delay-s=0 {nowhere.redirection}"
    )
    popen = subprocess.Popen(
        ["/bin/sh", "-c", command], cwd=folder, stdout=nowhere.file, stderr=nowhere.file
    )
    try:
        yield popen
    finally:
        popen.kill()
        popen.wait()


async def is_ready(popen: subprocess.Popen[bytes], client: httpx.AsyncClient) -> bool:
    assert popen.poll() is None
    try:
        return (await client.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
async def test_a_server_whose_log_has_nowhere_to_go_serves_and_stops_in_order(
    tmp_path: Path, nowhere: Nowhere
) -> None:
    transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "http"))
    with serving(tmp_path, nowhere) as popen:
        async with httpx.AsyncClient(
            base_url="http://x", transport=transport, timeout=60
        ) as client:
            await until(lambda: is_ready(popen, client))
            assert await ask(client, THREE_ROWS) == 200
            assert await ask(client, BROKEN) == 400
        popen.terminate()
        assert popen.wait(timeout=30) == 0
