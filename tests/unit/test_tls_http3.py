"""HTTP/3 with given certificates: what is agreed on, and certificates that change."""

from pathlib import Path

import pytest
from cryptography import x509

from tests.fixtures.authority import DAY, Authority, Pair, serial_of, shake_hands, trusting
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import http3_served
from transports.http3.client import Http3Client


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def files(pair: Pair) -> dict[str, str]:
    return {"certificate": str(pair.certificate), "private_key": str(pair.private_key)}


async def quic_serial(port: int, authority: Authority) -> int:
    """Connect over QUIC, which agrees on "h3" or fails, and return the certificate's number."""
    async with Http3Client.connect("localhost", port, authority.ca) as client:
        assert (await client.get("/livez")).status == 200
        leaf = client._protocol._quic.tls._peer_certificate
        assert isinstance(leaf, x509.Certificate)
        return leaf.serial_number


async def test_a_new_certificate_serves_new_connections_over_quic_and_tcp(
    authority: Authority, tmp_path: Path
) -> None:
    pair, new = authority.issue(), authority.issue("new")
    first, second, context = serial_of(pair), serial_of(new), trusting(authority)
    async with (
        http3_served(StubEngine(), tmp_path, **files(pair)) as transport,
        Http3Client.connect("localhost", transport.port, authority.ca) as old,
    ):
        assert (await old.get("/livez")).status == 200
        assert await quic_serial(transport.port, authority) == first
        pair.replace_by(new)
        assert await quic_serial(transport.port, authority) == second
        assert (await shake_hands(transport.port, context)).serial == second
        pair.certificate.write_bytes(b"half written")
        assert await quic_serial(transport.port, authority) == second
        assert (await old.get("/livez")).status == 200


async def test_alpn_of_https_beside_it_is_http_1_1(authority: Authority, tmp_path: Path) -> None:
    async with http3_served(StubEngine(), tmp_path, **files(authority.issue())) as transport:
        context = trusting(authority, alpn=("h3", "h2", "http/1.1"))
        assert (await shake_hands(transport.port, context)).alpn == "http/1.1"


async def test_a_certificate_past_its_end_stops_the_start(
    authority: Authority, tmp_path: Path
) -> None:
    late = authority.issue("late", first=-2 * DAY, last=-DAY)
    with pytest.raises(OSError, match=r"certificate: .*late\.pem expired on "):
        async with http3_served(StubEngine(), tmp_path, **files(late)):
            pass
