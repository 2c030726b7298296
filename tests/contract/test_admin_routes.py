"""What is for operators alone is on the admin listener, which is on loopback unless told."""

import re
from pathlib import Path

import httpx
from starlette.routing import Route

from scheduler.control import Refused
from tests.fixtures.stub_engine import StubEngine
from transports.http.admin import AdminOptions, AdminTransport
from transports.http.deltas import PATH, DeltasApp
from transports.http.page.app import PlaygroundApp
from transports.http.pages import pages
from transports.http.server import HttpTransport
from transports.http3.client import Http3Client
from transports.http3.server import Http3Transport


def routes(app: object) -> set[tuple[str, str]]:
    """Return every method and path of an app, hidden ones too."""
    found: set[tuple[str, str]] = set()
    for route in getattr(app, "routes", ()):
        if isinstance(route, Route):
            found |= {(method, route.path) for method in route.methods or ()}
        found |= routes(getattr(route, "original_router", None))  # as FastAPI includes one
    return found


def test_the_admin_listener_is_on_loopback() -> None:
    assert AdminOptions().host == "127.0.0.1"
    assert not AdminOptions().updates


async def test_every_route_that_only_the_admin_listener_has_is_unknown_elsewhere(
    certificates: Path,
) -> None:
    engine = StubEngine()
    http = HttpTransport(HttpTransport.Options(port=0))
    http3 = Http3Transport(Http3Transport.Options(port=0, certificate_dir=str(certificates)))
    admin = AdminTransport(AdminTransport.Options(port=0, updates=True))
    (url,), (private,) = await http.start(engine), await admin.start(engine)
    await http3.start(engine)
    assert http3.certificate is not None
    assert admin._listener is not None
    try:
        # Around its pages are two apps that have one route each.
        deltas = admin._listener._config.app
        assert isinstance(deltas, DeltasApp)
        playground = deltas._following
        assert isinstance(playground, PlaygroundApp)
        everything = routes(playground._following)
        everything |= {("POST", "/page/v1/models/{model}/predict"), ("POST", PATH)}
        own = everything - routes(pages(engine))
        assert ("POST", f"{PATH}/rollback") in own
        async with (
            httpx.AsyncClient(base_url=url, timeout=60) as public,
            httpx.AsyncClient(base_url=private, timeout=60) as operators,
            Http3Client.connect("localhost", http3.port, http3.certificate.path) as quic,
        ):
            for method, path in own:
                real = re.sub(r"\{model[^}]*\}", "dlrm", re.sub(r"\{(?!model)[^}]*\}", "x", path))
                # 405: a path that others share with another method.
                answer = await public.request(method, real)
                assert answer.status_code in {404, 405}, (method, real)
                assert answer.json()["status"] == answer.status_code
                if method == "GET":
                    assert (await quic.get(real)).status in {404, 405}
                if method == "POST":
                    assert (await quic.post(real, b"{}", {})).status in {404, 405}
            answer = await operators.get("/v1/models/dlrm/embeddings")
            assert answer.status_code != 404 or "embeddings" not in answer.text
    finally:
        for transport in (http, http3, admin):
            await transport.stop(0.1)


async def test_without_model_control_nobody_loads_or_unloads_on_any_listener() -> None:
    engine = StubEngine()
    engine.refused = (Refused("dlrm", "2", "because"),)
    http = HttpTransport(HttpTransport.Options(port=0))
    admin = AdminTransport(AdminTransport.Options(port=0))
    try:
        for transport in (http, admin):
            (url,) = await transport.start(engine)
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                for action in ("load", "unload"):
                    answer = await client.post(f"/v2/repository/models/dlrm/{action}")
                    assert answer.status_code == 501
    finally:
        for transport in (http, admin):
            await transport.stop(0.1)
