"""The Open Inference Protocol's pages: what is said of the server and its models, and what not."""

import re
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import httpx
import orjson
import pytest

from scheduler.observer import Observer
from tests.fixtures.gates import Watched
from tests.fixtures.oip_http import INFER, OipServed, json_body, oip_served
from tests.fixtures.raw_http import raw
from tests.fixtures.requests import random_request
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import http_served, problem
from transports.http.oip_body import PAGE_BODY

PATHS = {"", "/versions/1"}
FIGURES = {
    "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit",
    "cache_miss",
}  # fmt: skip


@pytest.fixture
async def served() -> AsyncIterator[OipServed]:
    async with oip_served() as serving:
        yield serving


async def get(served: OipServed, path: str) -> Any:
    answer = await served.client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ask(served: OipServed, rows: int) -> None:
    request = random_request(served.engine.spec("fake"), rows, seed=rows)
    await served.infer(json_body(request.inputs))


async def test_the_server_names_itself_and_what_it_serves(served: OipServed) -> None:
    assert await get(served, "/v2") == {
        "name": "narsil",
        "version": version("narsil"),
        "extensions": [
            "binary_tensor_data", "model_configuration", "schedule_policy", "statistics",
        ],
    }  # fmt: skip


async def test_statistics_are_not_advertised_when_nobody_counts() -> None:
    async with oip_served(observer=Observer()) as served:
        assert "statistics" not in (await get(served, "/v2"))["extensions"]
        for path in ("/v2/models/stats", "/v2/models/fake/stats"):
            problem((await served.client.get(path)).content, 501)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True, "live": True}),
        ("/v2/models/dlrm/ready", {"name": "dlrm", "ready": True}),
        ("/v2/models/dlrm/versions/1/ready", {"name": "dlrm", "ready": True}),
    ],
)
async def test_health_follows_the_engine(path: str, body: dict[str, Any]) -> None:
    engine = StubEngine()
    async with http_served(engine) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert (await client.get(path)).json() == body
        engine.up = False
        answer = await client.get(path)
        problem(answer.content, 503)
        assert answer.headers["retry-after"] == "1"
        engine.up = True
        assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("path", PATHS)
async def test_a_models_tensors_are_described_as_generic_tools_can_fill_them(
    served: OipServed, path: str
) -> None:
    metadata = await get(served, f"/v2/models/fake{path}")
    properties = metadata.pop("properties")
    assert metadata == {
        "name": "fake",
        "versions": ["1"],
        "platform": "narsil",
        "inputs": [
            {"name": "float_features", "datatype": "FP32", "shape": [-1, 3]},
            {"name": "id_list_features", "datatype": "INT64", "shape": [-1, 2]},
        ],
        "outputs": [{"name": "default", "datatype": "FP32", "shape": [-1, 1]}],
    }
    assert "id_list_features.lengths" in properties["encodings"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_models_configuration_leaves_out_the_batchs_own_size(
    served: OipServed, path: str
) -> None:
    config = await get(served, f"/v2/models/fake{path}/config")
    assert config["max_batch_size"] == served.engine.spec("fake").max_request_rows
    assert config["input"] == [
        {"name": "float_features", "data_type": "TYPE_FP32", "dims": [3], "optional": False},
        {"name": "id_list_features", "data_type": "TYPE_INT64", "dims": [2], "optional": False},
    ]
    assert config["output"] == [{"name": "default", "data_type": "TYPE_FP32", "dims": [1]}]
    assert config["dynamic_batching"]["preferred_batch_size"] == [1024]


@pytest.mark.parametrize("path", ["/v2/models/stats", "/v2/models/fake/stats"])
async def test_statistics_count_requests_rows_and_batches(served: OipServed, path: str) -> None:
    await ask(served, rows=3)
    await ask(served, rows=5)
    await served.client.post(INFER, content=b"{}")
    (model,) = (await get(served, path))["model_stats"]
    assert (model["name"], model["version"]) == ("fake", "1")
    assert (model["inference_count"], model["execution_count"]) == (8, 2)
    assert model["last_inference"] > 0
    stats = model["inference_stats"]
    assert set(stats) == FIGURES
    counts = {name: stats[name]["count"] for name in FIGURES}
    assert counts == {
        **dict.fromkeys(FIGURES, 2), "fail": 1, "cache_hit": 0, "cache_miss": 0,
    }  # fmt: skip
    assert stats["success"]["ns"] >= stats["compute_infer"]["ns"] > 0
    assert [batch["batch_size"] for batch in model["batch_stats"]] == [3, 5]


async def test_statistics_of_a_model_that_has_done_nothing_are_zero(served: OipServed) -> None:
    (model,) = (await get(served, "/v2/models/fake/versions/1/stats"))["model_stats"]
    assert {tuple(spent.values()) for spent in model["inference_stats"].values()} == {(0, 0)}


async def test_every_version_is_listed_and_described() -> None:
    async with oip_served(Watched(version="1")) as served:
        await served.engine.load(Watched(version="2"))
        assert (await get(served, "/v2/models/fake"))["versions"] == ["1", "2"]
        index = (await served.client.post("/v2/repository/index")).json()
        assert index == [
            {"name": "fake", "version": number, "state": "READY", "reason": ""}
            for number in ("1", "2")
        ]
        for path, versions in (
            ("", ["1", "2"]),
            ("/fake", ["1", "2"]),
            ("/fake/versions/1", ["1"]),
        ):
            figures = (await get(served, f"/v2/models{path}/stats"))["model_stats"]
            assert [model["version"] for model in figures] == versions
        request = random_request(served.engine.spec("fake"), rows=1, seed=1)
        for path, number in ((INFER, "2"), ("/v2/models/fake/versions/1/infer", "1")):
            answer = await served.infer(json_body(request.inputs), path)
            assert answer.document["model_version"] == number


@pytest.mark.parametrize("body", [b"", b"{}", b'{"ready": false}', b'{"ready": true}'])
async def test_the_index_leaves_out_what_is_not_ready_if_asked_to(
    served: OipServed, body: bytes
) -> None:
    assert len((await served.client.post("/v2/repository/index", content=body)).json()) == 1
    served.engine.drain()
    listed = (await served.client.post("/v2/repository/index", content=body)).json()
    assert [entry["state"] for entry in listed] == ([] if b"true" in body else ["UNAVAILABLE"])


@pytest.mark.parametrize(
    ("body", "status"), [(b"{", 400), (b"[]", 400), (b" " * (PAGE_BODY.max_json_bytes + 1), 413)]
)
async def test_an_index_request_that_is_none_is_refused(
    served: OipServed, body: bytes, status: int
) -> None:
    answer = await served.client.post("/v2/repository/index", content=body)
    problem(answer.content, status)


async def test_an_index_request_without_end_is_refused(served: OipServed) -> None:
    async with raw(served.url) as connection:
        await connection.send(
            b"POST /v2/repository/index HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await connection.send(b"1000\r\n" + b" " * 4096 + b"\r\n" + b"1\r\n \r\n")
        problem((await connection.answer()).body, 413)


OTHERS = [
    ("GET", "/v2/models/nope", 404),
    ("GET", "/v2/models/nope/ready", 404),
    ("GET", "/v2/models/nope/config", 404),
    ("GET", "/v2/models/nope/stats", 404),
    ("GET", "/v2/models/fake/versions/9", 404),
    ("GET", "/v2/models/fake/versions/9/ready", 404),
    ("GET", "/v2/models/fake/versions/9/stats", 404),
    ("POST", "/v2/models/nope/infer", 404),
    ("GET", "/v2/models", 404),
    ("GET", "/v2/nope", 404),
    ("POST", "/v2/models/a%2Fb/infer", 404),
    ("POST", "/v2/models//infer", 404),
    ("POST", "/v2/models/fake/versions//infer", 404),
    ("POST", "/v2/models/fake/infer/", 404),
    ("POST", "/v2", 405),
    ("DELETE", "/v2/health/live", 405),
    ("GET", "/v2/repository/index", 405),
    ("POST", "/v2/models/fake/generate", 501),
    ("POST", "/v2/models/fake/versions/1/generate_stream", 501),
    ("POST", "/v2/repository/models/fake/load", 501),
    ("POST", "/v2/repository/mine/models/fake/unload", 501),
    ("GET", "/v2/systemsharedmemory/status", 501),
    ("GET", "/v2/cudasharedmemory/region/a/status", 501),
    ("POST", "/v2/systemsharedmemory/region/a/register", 501),
    ("POST", "/v2/cudasharedmemory/unregister", 501),
    ("GET", "/v2/trace/setting", 501),
    ("POST", "/v2/models/fake/trace/setting", 501),
    ("GET", "/v2/logging", 501),
]


async def test_every_other_request_gets_a_problem(served: OipServed) -> None:
    for method, path, status in OTHERS:
        answer = await served.client.request(method, path, headers={"x-request-id": "mine"})
        assert answer.status_code == status, (method, path)
        assert answer.headers["x-request-id"] == "mine"
        problem(answer.content, status)


async def test_openapi_describes_infer_with_an_example_that_works(served: OipServed) -> None:
    paths = (await get(served, "/openapi.json"))["paths"]
    for path in ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"):
        operation = paths[path]["post"]
        example = operation["requestBody"]["content"]["application/json"]["example"]
        target = path.replace("{model}", "fake").replace("{version}", "1")
        answer = await served.infer(orjson.dumps(example), target)
        assert answer.outputs["default"].shape == (1, 1)
        assert {"400", "404", "413", "415", "429", "503", "504"} <= set(operation["responses"])


async def test_openapi_documents_every_page_once(served: OipServed) -> None:
    answer = await served.client.get("/openapi.json")
    paths = answer.json()["paths"]
    expected = {
        "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/repository/index",
        "/v2/repository/models/{model}/load", "/v2/repository/models/{model}/unload",
        "/v2/systemsharedmemory/status", "/v2/systemsharedmemory/region/{region}/status",
        "/v2/systemsharedmemory/region/{region}/register", "/v2/systemsharedmemory/unregister",
        "/v2/systemsharedmemory/region/{region}/unregister",
        *(
            f"/v2/models/{{model}}{version}{page}"
            for version in ("", "/versions/{version}")
            for page in ("", "/ready", "/config", "/stats", "/infer")
        ),
    }  # fmt: skip
    assert {path for path in paths if path.startswith("/v2")} == expected
    names = re.findall(r'"operationId":"([^"]+)"', answer.text)
    assert len(names) == len(set(names))


async def test_a_model_may_be_described_while_none_is_ready(served: OipServed) -> None:
    served.engine.drain()
    assert (await get(served, "/v2/models/fake"))["name"] == "fake"
