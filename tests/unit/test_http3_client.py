"""Our HTTP/3 client: why there is no answer is always said."""

import asyncio
import datetime
from pathlib import Path

import pytest

from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import http3_client, http3_served, json_body
from transports.http3.certificate import development_certificate
from transports.http3.client import Http3Client, Http3Error
from transports.http3.server import Http3Options, Http3Transport


async def test_a_server_that_is_not_trusted_is_an_error(certificates: Path, tmp_path: Path) -> None:
    other = development_certificate(tmp_path, datetime.datetime.now(datetime.UTC))
    async with http3_served(StubEngine(), certificates) as transport:
        with pytest.raises(Http3Error):
            async with Http3Client.connect("localhost", transport.port, other.certificate):
                pass


async def test_a_connection_that_ends_fails_what_waits_and_what_follows(
    certificates: Path,
) -> None:
    engine = StubEngine()
    engine.gate.clear()
    transport = Http3Transport(Http3Options(port=0, certificate_dir=str(certificates)))
    await transport.start(engine)
    async with http3_client(transport) as client:
        waiting = asyncio.create_task(client.post("/v1/predict", json_body([0.5]), {}))
        await engine.entered.wait()
        assert transport._endpoint is not None
        (connection,) = transport._endpoint._host.connections
        connection.close()
        with pytest.raises(Http3Error):
            await waiting
        await transport.stop(0.0)
        with pytest.raises(Http3Error, match="closed"):
            await client.get("/livez")


async def test_an_address_works_as_well_as_a_name(certificates: Path) -> None:
    async with http3_served(StubEngine(), certificates) as transport:
        assert transport.certificate is not None
        ca = transport.certificate.path
        async with Http3Client.connect("127.0.0.1", transport.port, ca) as client:
            assert (await client.get("/livez")).status == 200


async def test_nothing_of_a_request_stays_on_its_connection(certificates: Path) -> None:
    async with (
        http3_served(StubEngine(), certificates, max_request_bytes=1000) as transport,
        http3_client(transport) as client,
    ):
        bodies = [json_body([0.5]), bytes(50_000)] * 50
        answers = [await client.post("/v1/predict", body, {}) for body in bodies]
        assert [answer.status for answer in answers] == [200, 413] * 50
        await client.get("/livez")
        assert transport._endpoint is not None
        (connection,) = transport._endpoint._host.connections
        assert connection._session is not None
        assert not connection._requests
        assert not connection._session._unread
        requests = [stream for stream in connection._session._stream if stream % 4 == 0]
        assert requests == []
