"""Probes, metrics, model descriptions and documentation."""

import re
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.fixtures.stub_engine import ID_FEATURES, StubEngine
from tests.fixtures.stub_serving import JSON, PROBLEM, PROTOBUF, http_served, problem
from transports.http.pages import pages

PROBES = ["/livez", "/readyz", "/startupz", "/healthz", "/ping"]


@pytest.fixture
def engine() -> StubEngine:
    return StubEngine()


@pytest.fixture
async def client(engine: StubEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with http_served(engine) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        yield http


@pytest.mark.parametrize("path", PROBES)
async def test_a_probe_follows_the_engine(
    client: httpx.AsyncClient, engine: StubEngine, path: str
) -> None:
    assert (await client.get(path)).status_code == 200
    engine.up = False
    answer = await client.get(path)
    problem(answer.content, 503)
    assert answer.headers["retry-after"] == "1"
    engine.up = True
    assert (await client.get(path)).status_code == 200


async def test_head_is_get_without_its_body(client: httpx.AsyncClient) -> None:
    head, get = await client.head("/livez"), await client.get("/livez")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


async def test_metrics_come_from_the_observer_in_the_format_asked_for(
    client: httpx.AsyncClient, engine: StubEngine
) -> None:
    assert (await client.get("/metrics")).status_code == 404  # clients see none unless asked for
    accept = {"accept": "application/openmetrics-text"}
    async with (
        http_served(engine, metrics=True) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        answer = await http.get("/metrics", headers=accept)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.text == "# application/openmetrics-text\nstub_metric 1\n"


async def test_models_are_described(client: httpx.AsyncClient) -> None:
    (listed,) = (await client.get("/v1/models")).json()["models"]
    assert listed == (await client.get("/v1/models/dlrm")).json()
    assert listed["name"] == "dlrm"
    assert listed["inputs"][1] == {
        "name": "id_list_features.lengths",
        "dtype": "int32",
        "shape": [2, "rows"],
        "labels": list(ID_FEATURES),
    }


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models/nope", 404),
        ("GET", "/", 404),
        ("POST", "/v1/predict/more", 404),
        ("GET", "/static-offline-docs/../../etc/passwd", 404),
        ("GET", "/static-offline-docs/%2e%2e/%2e%2e/core.py", 404),
        ("POST", "/v1/models//predict", 404),
        ("POST", "/v1/models/a%2Fb/predict", 404),
        ("POST", "/livez", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/docs", 405),
    ],
)
async def test_every_other_request_gets_a_problem(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    answer = await client.request(method, path, headers={"x-request-id": "mine"})
    assert answer.status_code == status
    assert answer.headers["content-type"] == PROBLEM
    assert answer.headers["x-request-id"] == "mine"
    problem(answer.content, status)
    if status == 405:
        assert answer.headers["allow"] == "GET"


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
async def test_the_documentation_loads_nothing_from_elsewhere(
    client: httpx.AsyncClient, page: str
) -> None:
    html = (await client.get(page)).text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert loaded
    for url in loaded:
        assert url.startswith("/")
        assert (await client.get(url)).status_code == 200


async def test_openapi_describes_predict_with_an_example_that_works(
    client: httpx.AsyncClient,
) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    for path in ("/v1/predict", "/v1/models/{model}/predict"):
        operation = paths[path]["post"]
        content = operation["requestBody"]["content"]
        assert set(content) == {JSON, PROTOBUF}
        assert {"200", "400", "404", "413", "415", "429", "503", "504"} <= set(
            operation["responses"]
        )
        target = path.replace("{model}", "dlrm")
        assert (await client.post(target, json=content[JSON]["example"])).status_code == 200


async def test_openapi_has_no_dangling_reference(client: httpx.AsyncClient) -> None:
    answer = await client.get("/openapi.json")
    schemas = answer.json()["components"]["schemas"]
    references = set(re.findall(r'"#/components/schemas/(\w+)"', answer.text))
    assert "Problem" in references
    assert references <= set(schemas)


async def test_an_unknown_path_is_quoted_and_cut(client: httpx.AsyncClient) -> None:
    answer = await client.get("/nope%0a" + "x" * 5000)
    detail = problem(answer.content, 404)["detail"]
    assert detail.startswith("GET /nope\\nxxx")
    assert len(detail) < 200


async def test_the_admin_listener_documents_no_predict_path(engine: StubEngine) -> None:
    assert not [path for path in pages(engine).openapi()["paths"] if "predict" in path]
