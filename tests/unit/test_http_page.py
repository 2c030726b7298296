"""The page's routes over real sockets: what they give, and to whom not."""

import re
from collections.abc import AsyncIterator
from importlib.resources import files

import httpx
import pytest
import pytest_asyncio

from tests.fixtures.page import EXAMPLE, OWN, PREDICT, SCORES, Page, Shelf, page_served
from tests.fixtures.stub_serving import problem
from transports.http.page.guard import check_host
from transports.http.page.library import Library
from transports.http.page.routes import POLICY
from transports.http.problem import HttpError

CHARTS = "/page/Chart.bundle.js"
STATIC = sorted(each.name for each in files("transports.http.page").joinpath("static").iterdir())


# One server for all: making one takes longer than asking it everything here.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page() -> AsyncIterator[Page]:
    async with page_served() as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(page: Page) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=page.url, timeout=60) as asking:
        yield asking


async def test_every_file_is_served_typed_tagged_and_under_a_strict_policy(
    client: httpx.AsyncClient,
) -> None:
    types = {
        "html": "text/html",
        "css": "text/css",
        "js": "text/javascript",
        "svg": "image/svg+xml",
    }
    for name in STATIC:
        answer = await client.get(f"/page/{name}")
        assert answer.headers["content-type"].startswith(types[name.rpartition(".")[2]])
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = await client.get(f"/page/{name}", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    index = await client.get("/")
    assert index.headers["content-type"].startswith("text/html")
    assert (await client.head("/")).status_code == 200


async def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing_inline(
    client: httpx.AsyncClient,
) -> None:
    text = (await client.get("/")).text
    assert "//" not in text.replace("<!doctype html>", "")
    assert "<style" not in text
    assert re.findall("<script.*", text) == [
        '<script defer src="/page/Chart.bundle.js"></script>',
        '<script type="module" src="/page/main.js"></script>',
    ]


async def test_chart_js_comes_packed_from_the_installed_package_under_the_same_policy(
    client: httpx.AsyncClient,
) -> None:
    forms = []
    for coding in ("gzip", "identity"):
        asked = {"accept-encoding": coding}
        answer = await client.get(CHARTS, headers=asked)
        assert answer.headers["content-type"].startswith("text/javascript")
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["vary"] == "accept-encoding"
        forms.append((answer.headers.get("content-encoding"), answer.headers["etag"]))
        asked["if-none-match"] = answer.headers["etag"]
        again = await client.get(CHARTS, headers=asked)
        assert (again.status_code, again.content) == (304, b"")
        assert answer.text.startswith("/*!\n * Chart.js v4.")
        # What the policy would refuse.
        assert re.findall(r"innerHTML|\beval\(|new Function|document\.write", answer.text) == []
    (packed, packed_tag), (plain, plain_tag) = forms
    assert (packed, plain) == ("gzip", None)
    assert packed_tag != plain_tag


@pytest.mark.parametrize("package", ["chartkick_elsewhere", "transports.http.page"])
async def test_without_chart_js_the_answer_says_which_package_lacks_it(package: str) -> None:
    with pytest.raises(HttpError, match=f"Chart.bundle.js: not in the package {package}") as raised:
        await Library(package).asset(b"")
    assert raised.value.status == 404


@pytest.mark.parametrize("name", ["..%2fassets.py", "assets.py", "%2e%2e/routes.py", "nope.js"])
async def test_no_other_file_is(client: httpx.AsyncClient, name: str) -> None:
    problem((await client.get(f"/page/{name}")).content, 404)


async def test_what_lies_beside_a_model_is_given_as_data(client: httpx.AsyncClient) -> None:
    for what in ("example", "catalogue"):
        answer = await client.get(f"/page/models/fake/{what}")
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.json()
        assert (await client.get(f"/page/models/other/{what}")).status_code == 204


async def test_live_has_state_models_and_an_answer_within_two_seconds(
    page: Page, client: httpx.AsyncClient
) -> None:
    answer = (await client.get("/live")).json()
    assert (answer["state"], answer["serving"]) == ("ready", [["fake", "1"]])
    assert (await client.post(f"{page.http}/v1/predict", json=EXAMPLE)).status_code == 200
    refused = await client.post(f"{page.http}/v1/predict", json={"rows": "<b>"})
    assert refused.status_code == 400
    while not (answer := (await client.get("/live?model=fake")).json())["errors"]:
        pass
    (error,) = answer["errors"]
    assert (error["code"], error["model"], error["transport"]) == (
        "invalid_request",
        "fake",
        "http",
    )
    assert error["request_id"] == refused.headers["x-request-id"]
    assert error["detail"] == refused.json()["detail"]
    assert sum(answer["series"]["requests_per_s"]) > 0
    assert max(filter(None, answer["series"]["batch_rows"])) == 2


@pytest.mark.parametrize("since", ["-1", "x", str(2**60), "1e9"])
async def test_a_number_that_is_no_second_is_refused(client: httpx.AsyncClient, since: str) -> None:
    assert "since" in problem((await client.get(f"/live?since={since}")).content, 400)["detail"]


async def test_the_playground_gives_the_inference_listeners_answer(
    page: Page, client: httpx.AsyncClient
) -> None:
    for path in (PREDICT, PREDICT.replace("/predict", "/versions/1/predict")):
        answer = await client.post(path, json=EXAMPLE, headers=OWN)
        assert answer.json()["predictions"]["default"] == SCORES
        assert "compute;dur=" in answer.headers["server-timing"]
    there = await client.post(f"{page.http}/v1/models/fake/predict", json=EXAMPLE)
    assert there.json() == answer.json()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-narsil-page": ""}, 200),
        ({"x-narsil-page": "1", "sec-fetch-site": "same-origin"}, 200),
        ({}, 403),
        ({"x-narsil-page": "1", "sec-fetch-site": "cross-site"}, 403),
        ({"x-narsil-page": "1", "sec-fetch-site": "same-site"}, 403),
        ({"x-narsil-page": "1", "host": "rebound.example"}, 421),
    ],
)
async def test_only_the_page_itself_may_predict(
    client: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    headers = {"content-type": "application/json", **headers}
    answer = await client.post(PREDICT, json=EXAMPLE, headers=headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    asked = await client.options(PREDICT, headers={"origin": "http://other.example"})
    assert asked.status_code == 405
    assert "access-control-allow-origin" not in asked.headers


@pytest.mark.parametrize(
    "path", ["/", "/live", "/page/main.js", CHARTS, "/page/models/fake/catalogue"]
)
async def test_another_sites_page_sees_nothing(client: httpx.AsyncClient, path: str) -> None:
    for headers, status in (
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"host": "rebound.example:9090"}, 421),
        ({"host": "localhost:9090", "sec-fetch-site": "none"}, 200),
    ):
        assert (await client.get(path, headers=headers)).status_code == status


async def test_a_body_has_the_limits_that_it_has_elsewhere(client: httpx.AsyncClient) -> None:
    answer = await client.post(PREDICT, content=b" " * 9_000_000, headers=OWN)
    assert "max_json_bytes" in problem(answer.content, 413)["detail"]
    problem((await client.get(PREDICT)).content, 405)
    unknown = await client.post(PREDICT.replace("fake", "nope"), json=EXAMPLE, headers=OWN)
    problem(unknown.content, 404)
    problem((await client.post("/page/v1/predict", json=EXAMPLE, headers=OWN)).content, 404)
    problem((await client.post("/v1/models/fake/predict", json=EXAMPLE)).content, 404)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.9:80", "[::1]:9090"])
async def test_this_machine_has_these_names(host: str) -> None:
    check_host({b"host": host.encode()}, "127.0.0.1")


@pytest.mark.parametrize("host", ["", "example.com", "localhost.example:1", "10.0.0.1", "[::2]:1"])
async def test_no_other_name_is_this_machines_unless_others_may_reach_it(host: str) -> None:
    with pytest.raises(HttpError, match="host"):
        check_host({b"host": host.encode()}, "localhost")
    check_host({b"host": host.encode()}, "0.0.0.0")


async def test_a_model_without_companions_has_none_and_a_server_that_drains_says_so() -> None:
    async with (
        page_served(Shelf({})) as page,
        httpx.AsyncClient(base_url=page.url, timeout=60) as client,
    ):
        assert (await client.get("/page/models/fake/example")).status_code == 204
        page.engine.companions = None
        assert (await client.get("/page/models/fake/example")).status_code == 204
        page.engine.drain()
        assert (await client.get("/live")).json()["state"] == "draining"
