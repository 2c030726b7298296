"""``narsil serve --frontends``: what all front ends have in common, keys' limits and a path."""

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import httpx
import pytest

from tests.e2e.process import Process, narsil_serve
from tests.e2e.test_frontends import ARGUMENTS, SPEC, _served, children
from tests.fixtures.requests import as_json, as_protobuf, random_request

pytestmark = pytest.mark.slow
KEY, BURST = "the-rankers-key", 40
# So slow that what comes back while the test runs is no request.
KEYS = f"""[ranker]
sha256 = "{hashlib.sha256(KEY.encode()).hexdigest()}"
requests_per_s = {BURST / 1e6}
burst_s = 1e6
"""
HEADERS = {"x-api-key": KEY}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server on two paths, for the holder of a key with a limit."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "keys.toml").write_text(KEYS)
    arguments = [
        "--server-api-keys=keys.toml",
        "--http-unix-path=h.sock",
        "--grpc-unix-path=g.sock",
    ]
    with narsil_serve(folder, [*ARGUMENTS, *arguments]) as process:
        yield process


async def test_a_limit_holds_for_all_front_ends_together_and_on_paths_as_on_ports(
    process: Process,
) -> None:
    request = random_request(SPEC, 1, seed=1)

    async def over_http(url: str, path: Path | None = None) -> int:
        """Ask on a connection of its own, which the kernel gives to either."""
        way = httpx.AsyncHTTPTransport(uds=str(path) if path else None)
        async with httpx.AsyncClient(base_url=url, transport=way, timeout=30) as client:
            body = as_json(request, SPEC)
            return (await client.post("/v1/predict", content=body, headers=HEADERS)).status_code

    async def over_grpc(target: str) -> int:
        async with grpc.aio.insecure_channel(target) as channel:
            predict = channel.unary_unary("/predictor.Predictor/Predict")
            try:
                await predict(as_protobuf(request), metadata=tuple(HEADERS.items()), timeout=30)
            except grpc.aio.AioRpcError as error:
                return 429 if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else 500
            return 200

    asked = []
    for _ in range(BURST // 2):
        asked += [
            over_http(process.urls["http"]),
            over_http("http://localhost", process.folder / "h.sock"),
            over_grpc(process.urls["grpc"].removeprefix("grpc://")),
            over_grpc(f"unix:{process.folder / 'g.sock'}"),
        ]
    statuses = await asyncio.gather(*asked)
    assert sorted(statuses) == [200] * BURST + [429] * BURST
    async with httpx.AsyncClient(base_url=process.urls["admin"], timeout=60) as client:
        text = (await client.get("/metrics", headers=HEADERS)).text
    assert f'narsil_key_requests_total{{key="ranker",outcome="rate_limited"}} {BURST}.0' in text


async def test_a_path_is_taken_while_front_ends_listen_there_and_gone_once_they_stop(
    process: Process,
) -> None:
    code, said = await asyncio.to_thread(
        _served, [*ARGUMENTS, "--transports=http", "--http-port=0", "--http-unix-path=h.sock"],
        process.folder,
    )  # fmt: skip
    assert code == 1
    assert "unix_path: cannot listen on" in said
    code, said = await asyncio.to_thread(
        _served, [*ARGUMENTS, "--transports=grpc", "--grpc-port=0", "--grpc-engine=grpcio",
                  "--grpc-unix-path=x.sock"],
        process.folder,
    )  # fmt: skip
    assert code == 1
    assert "unix_path: grpcio makes its socket itself" in said
    assert len(children(process)) == 2
    process.popen.send_signal(2)
    code, log = await asyncio.to_thread(process.wait)
    assert code == 0, log
    assert not list(process.folder.glob("*.sock"))
