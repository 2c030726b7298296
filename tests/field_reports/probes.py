"""Ask a server how it is, over every transport, and start one without a model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio
import httpx
from grpc_health.v1 import health_pb2

from scheduler.engine import Engine
from tests.fixtures.grpc_calls import Client
from transports.base import Transport
from transports.grpc.server import GrpcTransport
from transports.http.server import HttpTransport
from transports.http3.client import Http3Client
from transports.http3.server import Http3Transport

SERVING = int(health_pb2.HealthCheckResponse.SERVING)
NOT_SERVING = int(health_pb2.HealthCheckResponse.NOT_SERVING)
PROBES = ("startupz", "readyz", "livez")


@dataclass(frozen=True)
class Probes:
    """The probes of one server, over every transport."""

    http: httpx.AsyncClient
    http3: Http3Client
    grpc: Client

    async def say(self) -> dict[str, bool]:
        """Return what the three probes say; fail if the transports do not agree."""
        said = {}
        for name in PROBES:
            status = (await self.http.get(f"/{name}")).status_code
            assert status == (await self.http3.get(f"/{name}")).status
            assert status in (200, 503)
            said[name] = status == 200
        assert await self.grpc.check() == (SERVING if said["readyz"] else NOT_SERVING)
        return said


@asynccontextmanager
async def probes(urls: dict[str, str], ca: Path) -> AsyncIterator[Probes]:
    """Connect to a server's probes."""
    grpc_address, port = urlsplit(urls["grpc"]).netloc, urlsplit(urls["http3"]).port or 0
    async with (
        httpx.AsyncClient(base_url=urls["http"], timeout=60) as http,
        Http3Client.connect("localhost", port, ca) as http3,
        grpc.aio.insecure_channel(grpc_address) as channel,
    ):
        yield Probes(http, http3, Client(channel, 0))


def said(startup: bool, ready: bool, live: bool) -> dict[str, bool]:
    """Return what the probes should say."""
    return dict(zip(PROBES, (startup, ready, live), strict=True))


@asynccontextmanager
async def listening(
    engine: Engine, certificates: Path
) -> AsyncIterator[tuple[dict[str, str], Path]]:
    """Start every transport for ``engine``, loaded or not; yield the URLs and the certificate."""
    http3 = Http3Transport(Http3Transport.Options(port=0, certificate_dir=str(certificates)))
    transports: dict[str, Transport] = {
        "http": HttpTransport(HttpTransport.Options(port=0)),
        "grpc": GrpcTransport(GrpcTransport.Options(port=0)),
        "http3": http3,
    }
    urls = {name: (await transport.start(engine))[0] for name, transport in transports.items()}
    assert http3.certificate is not None
    try:
        yield urls, http3.certificate.path
    finally:
        for transport in transports.values():
            await transport.stop(1.0)
        await engine.close(1.0)
