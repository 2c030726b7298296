"""Pages of other origins may call if their origin is named, over every HTTP version."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import niquests
import pytest

from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import JSON, http3_served, http_served, json_body, problem
from transports.http.server import HttpOptions
from transports.http3.server import Http3Options

FRIEND, STRANGER = "https://shop.example", "https://elsewhere.example"
ASKING = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
ALLOWED = "access-control-allow-origin"

# Sends a method with an origin, further headers and a body to predict.
Ask = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture(params=[(FRIEND,), ("*",)], ids=["named", "any"])
async def ask(request: pytest.FixtureRequest) -> AsyncIterator[Ask]:
    async with (
        http_served(StubEngine(), cors_origins=request.param) as url,
        httpx.AsyncClient(timeout=60) as client,
    ):

        async def send(
            method: str, origin: str, body: bytes = b"", **headers: str
        ) -> httpx.Response:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            asked = {"origin": origin, "content-type": JSON, **named}
            return await client.request(method, f"{url}/v1/predict", content=body, headers=asked)

        yield send


async def test_a_preflight_is_answered_with_what_the_page_may_send(ask: Ask) -> None:
    answer = await ask("OPTIONS", FRIEND, **ASKING)
    assert answer.status_code == 200
    assert answer.headers[ALLOWED] in {FRIEND, "*"}
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "content-type"
    assert answer.headers["access-control-max-age"] == "7200"


@pytest.mark.parametrize(("body", "status"), [(json_body([0.5]), 200), (b"{}", 400)])
async def test_scores_and_errors_may_be_read_by_the_page(
    ask: Ask, body: bytes, status: int
) -> None:
    answer = await ask("POST", FRIEND, body)
    assert answer.status_code == status
    assert answer.headers[ALLOWED] in {FRIEND, "*"}
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_a_method_that_is_not_served_is_refused_in_words_the_page_may_read(
    ask: Ask,
) -> None:
    answer = await ask("DELETE", FRIEND)
    assert answer.headers[ALLOWED] in {FRIEND, "*"}
    assert problem(answer.content, 405)["detail"] == '"DELETE" is not supported here, send POST'


@pytest.mark.parametrize("origins", [(), (FRIEND,)], ids=["none", "another"])
async def test_an_origin_that_is_not_named_gets_no_permission(origins: tuple[str, ...]) -> None:
    async with (
        http_served(StubEngine(), cors_origins=origins) as url,
        httpx.AsyncClient(timeout=60) as client,
    ):
        predict, headers = f"{url}/v1/predict", {"origin": STRANGER}
        ahead = await client.options(predict, headers={**headers, **ASKING})
        answer = await client.post(predict, content=json_body([0.5]), headers=headers)
    problem(ahead.content, 405)
    assert answer.status_code == 200
    assert ALLOWED not in {*ahead.headers, *answer.headers}
    assert ("vary" in answer.headers) is bool(origins)


async def test_http3_gives_the_same_permission(certificates: Path) -> None:
    async with http3_served(StubEngine(), certificates, cors_origins=(FRIEND,)) as transport:
        assert transport.certificate is not None
        ca, url = str(transport.certificate.path), f"https://localhost:{transport.port}/v1/predict"

        def send() -> list[niquests.Response]:
            with niquests.Session(disable_http1=True, disable_http2=True) as session:
                asked = {"origin": FRIEND, "content-type": JSON}
                return [
                    session.options(url, headers={**asked, **ASKING}, verify=ca),
                    session.post(url, data=json_body([0.5]), headers=asked, verify=ca),
                ]

        answers = await asyncio.to_thread(send)
    assert [answer.headers[ALLOWED] for answer in answers] == [FRIEND, FRIEND]


@pytest.mark.parametrize("options", [HttpOptions, Http3Options])
@pytest.mark.parametrize(
    "origin",
    ["", "shop.example", "https://Shop.example", "https://shop.example/", "https://shop.example:443",
     "http://shop.example:80", "ftp://shop.example", "null", "https://*.example"],
)  # fmt: skip
def test_what_no_browser_sends_as_an_origin_is_refused_by_name(
    options: type[HttpOptions] | type[Http3Options], origin: str
) -> None:
    with pytest.raises(ValueError, match=r"^cors_origins must be .*, got ") as raised:
        options(cors_origins=("*", origin))
    assert repr(origin) in str(raised.value)


@pytest.mark.parametrize(
    "origin",
    ["*", FRIEND, "http://localhost:3000", "http://127.0.0.1:8000", "https://[::1]:8443"],
)
def test_origins_as_browsers_write_them_are_taken(origin: str) -> None:
    assert HttpOptions(cors_origins=(origin,)).cors_origins == (origin,)
