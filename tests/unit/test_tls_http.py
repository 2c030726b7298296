"""HTTP/1.1 in TLS: what is agreed on, who is let in, and certificates that change."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from tests.fixtures.authority import Authority, Pair, serial_of, shake_hands, trusting
from tests.fixtures.raw_http import raw
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import http_served, json_body
from transports.http.server import HttpOptions, HttpTransport


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def tls(pair: Pair, **options: Any) -> dict[str, Any]:
    """Return the options of a server with ``pair``."""
    files = {"certificate": str(pair.certificate), "private_key": str(pair.private_key)}
    return {**files, **{name: str(value) for name, value in options.items()}}


def port_of(url: str) -> int:
    return httpx.URL(url).port or 0


async def status_of(url: str, context: Any) -> int:
    """Ask over a connection of its own."""
    async with httpx.AsyncClient(base_url=url, verify=context, timeout=60) as client:
        return (await client.post("/v1/predict", content=json_body([0.5]))).status_code


async def is_refused(url: str, context: Any) -> bool:
    try:
        await status_of(url, context)
    except httpx.TransportError:
        return True
    return False


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_request_in_tls_is_answered_on_either_event_loop(
    authority: Authority, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def ask() -> None:
        async with http_served(StubEngine(), **tls(authority.issue())) as url:
            assert url.startswith("https://127.0.0.1:")
            assert await status_of(url, trusting(authority)) == 200

    run(ask())


@pytest.mark.parametrize("offered", [("http/1.1",), ("h2", "http/1.1")])
async def test_alpn_is_http_1_1(authority: Authority, offered: tuple[str, ...]) -> None:
    async with http_served(StubEngine(), **tls(authority.issue())) as url:
        agreed = await shake_hands(port_of(url), trusting(authority, alpn=offered))
        assert agreed.alpn == "http/1.1"


async def test_a_plain_request_on_the_tls_port_disturbs_nobody(authority: Authority) -> None:
    async with (
        http_served(StubEngine(), **tls(authority.issue())) as url,
        httpx.AsyncClient(base_url=url, verify=trusting(authority), timeout=60) as neighbour,
    ):
        assert (await neighbour.get("/livez")).status_code == 200
        async with raw(url) as plain:
            await plain.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"HTTP/" not in await plain.reader.read()
        assert (await neighbour.get("/livez")).status_code == 200


async def test_a_handshake_that_does_not_come_is_given_up(authority: Authority) -> None:
    # The one option that no test can do without waiting for.
    options: dict[str, Any] = {**tls(authority.issue()), "head_timeout_s": 0.1}
    async with http_served(StubEngine(), **options) as url, raw(url) as silent:
        assert await silent.closed()


async def test_a_client_without_a_certificate_is_refused_and_others_are_served(
    authority: Authority, tmp_path: Path
) -> None:
    clients = Authority(tmp_path / "clients", "Client authority")
    engine, options = StubEngine(), tls(authority.issue(), client_ca=clients.ca)
    ranker = trusting(authority, clients.issue("ranker"))
    async with (
        http_served(engine, **options) as url,
        httpx.AsyncClient(base_url=url, verify=ranker, timeout=60) as neighbour,
    ):
        assert (await neighbour.get("/livez")).status_code == 200
        assert await is_refused(url, trusting(authority))
        # Signed, but by the authority that no client's certificate is taken from.
        assert await is_refused(url, trusting(authority, authority.issue("foreign")))
        assert engine.requests == []
        assert (await neighbour.get("/livez")).status_code == 200
        assert await status_of(url, ranker) == 200


async def test_an_optional_certificate_may_be_absent_but_not_false(
    authority: Authority, tmp_path: Path
) -> None:
    clients = Authority(tmp_path / "clients", "Client authority")
    options = tls(authority.issue(), client_ca=clients.ca, client_certificates="optional")
    async with http_served(StubEngine(), **options) as url:
        assert await status_of(url, trusting(authority)) == 200
        assert await status_of(url, trusting(authority, clients.issue("ranker"))) == 200
        assert await is_refused(url, trusting(authority, authority.issue("foreign")))


async def test_a_new_certificate_serves_new_connections_and_old_ones_live_on(
    authority: Authority,
) -> None:
    pair, new = authority.issue(), authority.issue("new")
    first, second, context = serial_of(pair), serial_of(new), trusting(authority)
    async with (
        http_served(StubEngine(), **tls(pair)) as url,
        httpx.AsyncClient(base_url=url, verify=context, timeout=60) as old,
    ):
        assert (await old.get("/livez")).status_code == 200
        assert (await shake_hands(port_of(url), context)).serial == first
        pair.replace_by(new)
        assert (await shake_hands(port_of(url), context)).serial == second
        assert (await old.get("/livez")).status_code == 200
        pair.certificate.write_bytes(b"half written")
        assert (await shake_hands(port_of(url), context)).serial == second


async def test_a_new_client_authority_is_followed(authority: Authority, tmp_path: Path) -> None:
    clients = Authority(tmp_path / "clients", "Client authority")
    later = Authority(tmp_path / "later", "Later authority")
    newcomer = trusting(authority, later.issue("newcomer"))
    async with http_served(StubEngine(), **tls(authority.issue(), client_ca=clients.ca)) as url:
        assert await is_refused(url, newcomer)
        clients.ca.write_bytes(clients.ca.read_bytes() + later.ca.read_bytes())
        assert await status_of(url, newcomer) == 200
        assert await status_of(url, trusting(authority, clients.issue("ranker"))) == 200


async def test_files_that_cannot_serve_stop_the_start_and_leave_the_port_free(
    authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue()
    absent = tmp_path / "absent.pem"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = HttpOptions(port=port, **tls(Pair(absent, pair.private_key)))
    with pytest.raises(OSError, match=rf"certificate: {absent} cannot be read: No such file"):
        await HttpTransport(options).start(StubEngine())
    socket.create_server(("127.0.0.1", port)).close()
