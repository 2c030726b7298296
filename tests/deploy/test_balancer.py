"""deploy/nginx.conf in a real nginx, before two real gateways.

Debian's packages: nginx-light, libnginx-mod-stream.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio
import httpx
import pytest

from backends.fake import FakeBackend
from tests.deploy.files import DEPLOY
from tests.deploy.tools import free_port, run, running, tool, until_ready
from tests.e2e.process import Process, narsil_serve
from tests.fixtures.requests import as_json, as_protobuf, random_request
from tests.fixtures.wires import JSON, GrpcWire, Http3Wire, HttpWire, Wire
from transports.http3.client import Http3Client

pytestmark = pytest.mark.slow
# Where Debian's package puts it; nginx's own images have it built in.
STREAM = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
SPEC = FakeBackend(FakeBackend.Options()).spec
REQUEST = random_request(SPEC, rows=2, seed=0)


@dataclass(frozen=True)
class Balanced:
    """nginx's ports by transport, and the gateways behind it."""

    ports: dict[str, int]
    gateways: Sequence[Process]
    ca: Path

    @asynccontextmanager
    async def wires(self) -> AsyncIterator[dict[str, Wire]]:
        """Connect to nginx over everything it passes on."""
        async with (
            grpc.aio.insecure_channel(f"127.0.0.1:{self.ports['grpc']}") as channel,
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{self.ports['http']}", timeout=60
            ) as client,
            Http3Client.connect("localhost", self.ports["http3"], self.ca) as http3,
        ):
            yield {
                "grpc": GrpcWire(channel),
                "http": HttpWire(client, JSON),
                "http3": Http3Wire(http3, JSON),
            }


def configuration(gateways: Sequence[Process], ports: dict[str, int], folder: Path) -> str:
    """Return deploy/nginx.conf for ``gateways`` of this machine, listening at ``ports``."""
    text = (DEPLOY / "nginx.conf").read_text().replace("/tmp/", f"{folder}/")
    for port, name in (("8000", "http"), ("50051", "grpc"), ("8443", "http3")):
        inside = [urlsplit(gateway.urls[name]).port for gateway in gateways]
        servers = [rf"server 127.0.0.1:{each}\1" for each in inside]
        text = re.sub(rf"server gateway-scale:{port}(.*;)", "\n".join(servers), text)
        text = text.replace(f"listen {port}", f"listen 127.0.0.1:{ports[name]}")
    return text


def nginx_with_streams() -> str:
    """Return the path of nginx, or skip."""
    if not STREAM.exists():
        pytest.skip("nginx's stream module is not installed")
    return tool("nginx")


@pytest.fixture
async def balanced(tmp_path: Path, certificates: Path) -> AsyncIterator[Balanced]:
    nginx = nginx_with_streams()
    with ExitStack() as stack:
        gateways = []
        for name in ("one", "other"):
            folder = tmp_path / name
            folder.mkdir()
            arguments = ["--backend=fake", f"--http3-certificate-dir={certificates}"]
            gateways.append(stack.enter_context(narsil_serve(folder, arguments)))
        ports = {name: free_port() for name in ("http", "grpc", "http3")}
        file = tmp_path / "nginx.conf"
        file.write_text(configuration(gateways, ports, tmp_path))
        command = [nginx, "-g", f"load_module {STREAM}; daemon off;", "-c", str(file)]
        run(*command, "-t")
        stack.enter_context(running(*command))
        await until_ready(f"http://127.0.0.1:{ports['http']}/readyz")
        yield Balanced(ports, gateways, certificates / "certificate.pem")


def body(wire: Wire) -> bytes:
    return as_json(REQUEST, SPEC) if wire.json else as_protobuf(REQUEST)


async def answered(gateway: Process, transport: str) -> float:
    """Return how many requests a gateway has answered over ``transport``."""
    async with httpx.AsyncClient(base_url=gateway.urls["admin"], timeout=60) as client:
        text = (await client.get("/metrics")).text
    found = re.findall(rf'narsil_requests_total{{.*transport="{transport}"}} (\S+)', text)
    return sum(map(float, found))


async def test_every_transport_gets_through_and_requests_are_spread(balanced: Balanced) -> None:
    async with balanced.wires() as wires:
        for wire in wires.values():
            answers = [await wire.send(body(wire)) for _ in range(10)]
            assert all(len(answer.scores["default"]) == 2 for answer in answers), answers
    for transport in ("http", "grpc"):  # by request
        assert [await answered(one, transport) for one in balanced.gateways] == [5, 5]
    # by connection
    assert sorted([await answered(one, "http3") for one in balanced.gateways]) == [0, 10]


async def test_a_gateway_leaves_and_no_request_fails(balanced: Balanced) -> None:
    failed: list[str] = []
    leaving = balanced.gateways[0]
    over = asyncio.Event()

    async def ask(name: str, wire: Wire) -> int:
        count = 0
        while not over.is_set():
            answer = await wire.send(body(wire))
            if answer.codes:
                failed.append(f"{name}: {answer.detail}")
            count += 1
        return count

    async with balanced.wires() as wires:
        asking = [asyncio.create_task(ask(name, wires[name])) for name in ("http", "grpc")]
        leaving.terminate()
        code, _ = await asyncio.to_thread(leaving.wait)
        over.set()
        counts = await asyncio.gather(*asking)
        for name in ("http", "grpc"):
            assert not (await wires[name].send(body(wires[name]))).codes
    assert code == 0
    assert min(counts) > 10
    assert failed == []
