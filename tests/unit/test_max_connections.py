"""No more connections than the limit: those over it are turned away, the others live on."""

from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import httpx
import pytest

from tests.fixtures.grpc_calls import Served, grpc_options, grpc_serving, scores, status_of
from tests.fixtures.raw_grpc import PREDICT
from tests.fixtures.raw_http import raw
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import problem
from tests.fixtures.wire import sample
from transports.endpoint import MAX_CONNECTIONS
from transports.grpc.options import ENGINES, GrpcOptions
from transports.http.server import HttpOptions, HttpTransport
from transports.http3.server import Http3Transport

ASK = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("name", ["http", "https beside http3"])
async def test_over_http_they_are_told_and_a_place_that_is_free_again_is_taken(
    certificates: Path, name: str
) -> None:
    transport: HttpTransport | Http3Transport
    if name == "http":
        transport = HttpTransport(HttpTransport.Options(port=0, max_connections=2))
    else:
        options = Http3Transport.Options(
            port=0, max_connections=2, certificate_dir=str(certificates)
        )
        transport = Http3Transport(options)
    engine = StubEngine()
    (url,) = await transport.start(engine)
    limits = httpx.Limits(max_keepalive_connections=1)
    try:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    httpx.AsyncClient(base_url=url, verify=False, limits=limits, timeout=60)
                )
                for _ in range(3)
            ]
            for client in clients[:2]:
                assert (await client.get("/livez")).status_code == 200
            turned_away = await clients[2].get("/livez")
            assert turned_away.status_code == 503
            detail = problem(turned_away.content, 503)["detail"]
            assert detail == "the limit of 2 connections at once is reached (max_connections)"
            assert (await clients[0].get("/livez")).status_code == 200
            await clients[1].aclose()
            while (await clients[2].get("/livez")).status_code == 503:
                pass  # until the server has seen it go
    finally:
        await transport.stop(0.1)


@pytest.mark.parametrize("engine", ENGINES)
async def test_over_grpc_they_are_unavailable(engine: str) -> None:
    options = grpc_options(engine=engine, max_connections=1)
    async with grpc_serving(options) as served, another_channel(served) as second:
        served.serving.gate.open()
        assert len(scores(await served.client.predict())) == 2
        error = await status_of(second.unary_unary(PREDICT)(b"", timeout=60))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert len(scores(await served.client.predict())) == 2


async def test_over_grpc_a_place_that_is_free_again_is_taken() -> None:
    # grpcio's own limit now and then keeps the place of a connection that it has turned away.
    options = grpc_options(engine="nghttp2", max_connections=1)
    async with grpc_serving(options) as served, another_channel(served) as second:
        served.serving.gate.open()
        await served.client.predict()
        assert (await status_of(second.unary_unary(PREDICT)(b"", timeout=60))).code()
        await served.client.channel.close()
        body = sample().message().SerializeToString()
        answer = await second.unary_unary(PREDICT)(body, wait_for_ready=True, timeout=60)
        assert len(scores(answer)) == 2


def another_channel(served: Served) -> grpc.aio.Channel:
    """Return a channel to the same server that has a connection of its own."""
    target = f"127.0.0.1:{served.client.port}"
    return grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])


async def test_a_silent_connection_takes_a_place_too() -> None:
    transport = HttpTransport(HttpTransport.Options(port=0, max_connections=1))
    (url,) = await transport.start(StubEngine())
    try:
        async with raw(url), raw(url) as second:
            assert (await second.answer()).status == 503
    finally:
        await transport.stop(0.1)


@pytest.mark.parametrize("options", [HttpOptions, GrpcOptions])
@pytest.mark.parametrize("value", [0, MAX_CONNECTIONS + 1])
def test_a_limit_that_makes_no_sense_is_refused(
    options: type[HttpOptions | GrpcOptions], value: int
) -> None:
    with pytest.raises(ValueError, match=f"max_connections must be 1 to 1048576, got {value}"):
        options(max_connections=value)
