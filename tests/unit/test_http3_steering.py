"""Datagrams on a port that several processes share, steered by the kernel."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.requests import as_json, random_request
from tests.fixtures.stub_engine import SPEC, StubEngine
from transports.http3 import endpoint
from transports.http3.client import Http3Client
from transports.http3.server import Http3Options, Http3Transport
from transports.http3.steering import Steering, process_of, steered_sockets

HOST, COUNT = "127.0.0.1", 3
JSON = {"content-type": "application/json"}


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Three sockets on one port."""
    found, steered = steered_sockets(HOST, 0, COUNT)
    assert steered, "this kernel has no SO_ATTACH_REUSEPORT_CBPF"
    with ExitStack() as closing:
        for each in found:
            closing.enter_context(each)
            each.setblocking(True)
            each.settimeout(60)
        yield found


def test_the_kernel_s_program_and_ours_agree_on_every_datagram(
    sockets: list[socket.socket],
) -> None:
    datagrams = [bytes([0x40, byte, 9]) for byte in range(12)]
    datagrams += [bytes([0xC3, 0, 0, 0, 1, 8, byte, 9]) for byte in range(12)]
    datagrams += [b"", b"\x40", bytes([0xC0, 0, 0, 0, 1])]
    for number in range(COUNT):
        own = Steering(number, COUNT).connection_id(8)
        datagrams += [b"\x40" + own, bytes([0xC0, 0, 0, 0, 1, 8]) + own]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        for datagram in datagrams:
            client.sendto(datagram, sockets[0].getsockname())
            assert sockets[process_of(datagram, COUNT)].recv(100) == datagram


@pytest.mark.parametrize("retry_from", [endpoint.RETRY_FROM_HANDSHAKES, 0])
async def test_a_connection_stays_with_the_server_that_took_it_whatever_its_ids(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, retry_from: int
) -> None:
    monkeypatch.setattr(endpoint, "RETRY_FROM_HANDSHAKES", retry_from)
    options = Http3Options(port=0, certificate_dir=str(certificates), tcp=False)
    reserved = await Http3Transport(options).reserve(COUNT)
    engines = [StubEngine() for _ in range(COUNT)]
    transports = [Http3Transport(options) for _ in range(COUNT)]
    for transport, engine, share in zip(transports, engines, reserved.shares, strict=True):
        transport.share = replace(share, udp=os.dup(share.udp))  # as a process inherits it
        await transport.start(engine)
    body = as_json(random_request(SPEC, 1, seed=1), SPEC)
    ca = certificates / "certificate.pem"
    for _ in range(4):
        async with Http3Client.connect(HOST, reserved.shares[0].port, ca) as client:
            took = [len(engine.requests) for engine in engines]
            for _ in range(3):
                answer = await client.post("/v1/predict", body, JSON)
                assert answer.status == 200
                client._protocol._quic.change_connection_id()
            more = [len(each.requests) - one for each, one in zip(engines, took, strict=True)]
            assert sorted(more) == [0, 0, 3]
    for transport in transports:
        await transport.stop(0.1)
    reserved.close()
