"""gRPC in TLS: what is agreed on, who is let in, and certificates that change."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from tests.fixtures.authority import Authority, Pair, serial_of, shake_hands, trusting
from tests.fixtures.gates import serving
from tests.fixtures.grpc_calls import Client, grpc_options, status_of
from transports.grpc.server import GrpcTransport


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@contextlib.asynccontextmanager
async def served(pair: Pair, **options: Any) -> AsyncIterator[int]:
    """Serve a fake model with ``pair``; yield the port."""
    files = {"certificate": str(pair.certificate), "private_key": str(pair.private_key)}
    options |= {"port": 0, **files}
    async with serving() as state:
        state.gate.open()
        transport = GrpcTransport(grpc_options(**options))
        (url,) = await transport.start(state.engine)
        assert url.startswith("grpcs://127.0.0.1:")
        try:
            yield urlsplit(url).port or 0
        finally:
            await transport.stop(0)


@contextlib.asynccontextmanager
async def connected(
    port: int, authority: Authority, own: Pair | None = None
) -> AsyncIterator[Client]:
    """Yield a client with a connection of its own."""
    shown = (own.private_key.read_bytes(), own.certificate.read_bytes()) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes(), *shown)
    unshared = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, unshared) as channel:
        yield Client(channel, port)


async def test_a_call_in_tls_is_answered(authority: Authority) -> None:
    async with served(authority.issue()) as port, connected(port, authority) as client:
        assert await client.predict()


async def test_alpn_is_h2_and_nothing_else_will_do(authority: Authority) -> None:
    async with served(authority.issue()) as port:
        context = trusting(authority, alpn=("http/1.1", "h2"))
        assert (await shake_hands(port, context)).alpn == "h2"
        other = trusting(authority, alpn=("http/1.1",))
        reader, writer = await asyncio.open_connection("localhost", port, ssl=other)
        assert await reader.read() == b""
        writer.transport.abort()


async def test_a_client_without_a_certificate_is_refused_and_others_are_served(
    authority: Authority, tmp_path: Path
) -> None:
    clients = Authority(tmp_path / "clients", "Client authority")
    ranker, foreign = clients.issue("ranker"), authority.issue("foreign")
    async with (
        served(authority.issue(), client_ca=str(clients.ca)) as port,
        connected(port, authority, ranker) as neighbour,
    ):
        assert await neighbour.predict()
        for own in (None, foreign):
            async with connected(port, authority, own) as stranger:
                error = await status_of(stranger.predict())
                assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert await neighbour.predict()
        async with connected(port, authority, ranker) as another:
            assert await another.predict()


async def test_a_new_certificate_serves_new_connections_and_old_ones_live_on(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pair, new = authority.issue(), authority.issue("new")
    first, second = serial_of(pair), serial_of(new)
    context = trusting(authority, alpn=("h2",))
    async with served(pair) as port, connected(port, authority) as old:
        assert await old.predict()
        assert (await shake_hands(port, context)).serial == first
        pair.replace_by(new)
        assert (await shake_hands(port, context)).serial == second
        assert await old.predict()
        pair.certificate.write_bytes(b"half written")
        assert (await shake_hands(port, context)).serial == second
        assert "serves on" in caplog.text


async def test_a_new_client_authority_is_followed(authority: Authority, tmp_path: Path) -> None:
    clients = Authority(tmp_path / "clients", "Client authority")
    later = Authority(tmp_path / "later", "Later authority")
    newcomer = later.issue("newcomer")
    async with served(authority.issue(), client_ca=str(clients.ca)) as port:
        async with connected(port, authority, newcomer) as client:
            await status_of(client.predict())
        clients.ca.write_bytes(clients.ca.read_bytes() + later.ca.read_bytes())
        for own in (newcomer, clients.issue("ranker")):
            async with connected(port, authority, own) as client:
                assert await client.predict()


async def test_files_that_cannot_serve_stop_the_start(authority: Authority, tmp_path: Path) -> None:
    mixed = Pair(authority.issue("one").certificate, authority.issue("other").private_key)
    with pytest.raises(OSError, match=r"private_key: .*other\.key is not the key of"):
        async with served(mixed):
            pass
    absent = str(tmp_path / "absent.pem")
    with pytest.raises(OSError, match=rf"client_ca: {absent} cannot be read: No such file"):
        async with served(authority.issue(), client_ca=absent):
            pass
