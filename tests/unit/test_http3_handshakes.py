"""Handshakes that never end, and clients that come meanwhile."""

import asyncio
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from tests.fixtures.raw_http3 import RawClient, head, raw_client
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import http3_served
from transports.http3 import connection as connection_module
from transports.http3.connection import Host
from transports.http3.endpoint import RETRY_FROM_HANDSHAKES
from transports.http3.server import Http3Transport


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A client that never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        yield udp


def begin(udp: socket.socket, transport: Http3Transport) -> None:
    """Send the first datagrams of a handshake."""
    address = ("127.0.0.1", transport.port)
    configuration = QuicConfiguration(
        alpn_protocols=["h3"], server_name="localhost", verify_mode=ssl.CERT_NONE
    )
    client = QuicConnection(configuration=configuration)
    client.connect(address, now=0.0)
    for datagram, _ in client.datagrams_to_send(now=0.0):
        udp.sendto(datagram, address)


def host_of(transport: Http3Transport) -> Host:
    assert transport._endpoint is not None
    return transport._endpoint._host


async def count_of(host: Host, handshakes: int) -> None:
    while len(host.handshakes) != handshakes:
        host.progress.clear()
        await host.progress.wait()


async def is_served(raw: RawClient) -> bool:
    return await raw.status(raw.request(head("GET", "/livez"))) == 200


async def test_unfinished_handshakes_take_no_clients_place(
    certificates: Path, silent: socket.socket
) -> None:
    async with http3_served(StubEngine(), certificates, max_connections=1) as transport:
        begin(silent, transport)
        await count_of(host_of(transport), 1)
        async with raw_client(transport) as raw:
            assert await is_served(raw)
            assert raw.quic._retry_count == 0
        assert len(host_of(transport).handshakes) == 1  # did not have to end first


async def test_with_many_unfinished_a_client_must_prove_its_address(
    certificates: Path, silent: socket.socket
) -> None:
    async with http3_served(StubEngine(), certificates) as transport:
        host = host_of(transport)
        for _ in range(RETRY_FROM_HANDSHAKES + 20):
            begin(silent, transport)
        await count_of(host, RETRY_FROM_HANDSHAKES)
        async with raw_client(transport) as raw:
            assert await is_served(raw)
            assert raw.quic._retry_count == 1
        assert len(host.handshakes) == RETRY_FROM_HANDSHAKES


async def test_a_proof_still_counts_when_none_is_asked_any_more(
    certificates: Path, silent: socket.socket
) -> None:
    async with http3_served(StubEngine(), certificates) as transport:
        host = host_of(transport)
        for _ in range(RETRY_FROM_HANDSHAKES):
            begin(silent, transport)
        await count_of(host, RETRY_FROM_HANDSHAKES)
        assert transport._endpoint is not None
        answered, forget = transport._endpoint.datagrams_received, host.handshakes.clear

        def forget_after(datagrams: Sequence[bytes], address: object) -> None:
            answered(datagrams, address)
            forget()

        assert transport._endpoint._udp is not None
        transport._endpoint._udp._receiver.datagrams_received = forget_after  # type: ignore[method-assign]
        async with raw_client(transport) as raw:
            assert await is_served(raw)
            assert raw.quic._retry_count == 1


async def test_a_handshake_has_little_time(
    certificates: Path, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HANDSHAKE_TIMEOUT_S", 0.01)
    async with http3_served(StubEngine(), certificates) as transport:
        host = host_of(transport)
        begin(silent, transport)
        await count_of(host, 1)
        await count_of(host, 0)
        assert not host.connections


async def test_a_connection_that_falls_silent_is_forgotten(certificates: Path) -> None:
    async with http3_served(StubEngine(), certificates, idle_timeout_s=0.2) as transport:
        host = host_of(transport)
        async with raw_client(transport) as raw:
            assert await is_served(raw)
            assert len(host.connections) == 1
            async with asyncio.timeout(60):
                while host.connections:  # noqa: ASYNC110  # nobody tells when it goes
                    await asyncio.sleep(0.01)
        async with raw_client(transport) as other:
            assert await is_served(other)
