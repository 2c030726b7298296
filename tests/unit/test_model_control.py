"""Clients that load and unload models, over gRPC and HTTP, where the server lets them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest

from scheduler.errors import LoadError
from tests.fixtures.grpc_calls import grpc_client
from tests.fixtures.oip_grpc import OipClient
from tests.fixtures.stock import Stock, Stocked, Version, stocked
from transports.http.admin import AdminOptions, AdminTransport
from transports.http.server import HttpOptions, HttpTransport
from transports.proto import open_inference_pb2 as oip

EXTENSION = "model_repository"
# What each wire calls the same outcome.
STATUS = {
    200: None,
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
}
LOAD, UNLOAD = "load", "unload"


@dataclass(frozen=True)
class Answer:
    """An outcome as an HTTP status, and the words that came with a refusal."""

    status: int
    detail: str = ""


class Http:
    """Ask over HTTP."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(self, verb: str, model: str, **parameters: Any) -> Answer:
        body = {"parameters": parameters}
        answer = await self._client.post(f"/v2/repository/models/{model}/{verb}", json=body)
        detail = answer.json()["error"] if answer.status_code != 200 else ""
        return Answer(answer.status_code, detail)

    async def index(self) -> list[tuple[str, ...]]:
        answer = await self._client.post("/v2/repository/index")
        return [(one["name"], one["version"], one["state"], one["reason"]) for one in answer.json()]

    async def extensions(self) -> list[str]:
        names: list[str] = (await self._client.get("/v2")).json()["extensions"]
        return names


class Grpc:
    """Ask over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._client = OipClient(channel)

    async def ask(self, verb: str, model: str, **parameters: Any) -> Answer:
        method = f"RepositoryModel{verb.title()}"
        request = getattr(oip, f"{method}Request")(model_name=model)
        for name, value in parameters.items():
            setattr(request.parameters[name], _field(value), value)
        try:
            await self._client.call(method, request)
        except grpc.aio.AioRpcError as error:
            (status,) = (http for http, code in STATUS.items() if code is error.code())
            return Answer(status, error.details() or "")
        return Answer(200)

    async def index(self) -> list[tuple[str, ...]]:
        answer = await self._client.call("RepositoryIndex")
        return [(one.name, one.version, one.state, one.reason) for one in answer.models]

    async def extensions(self) -> list[str]:
        return list((await self._client.call("ServerMetadata")).extensions)


def _field(value: object) -> str:
    return "bool_param" if isinstance(value, bool) else "string_param"


@dataclass(frozen=True)
class Controlled:
    """A repository, and a client that may, or may not, change it."""

    stock: Stocked
    client: Http | Grpc


@asynccontextmanager
async def served(wire: str, stock: Stock, *, allowed: bool = True) -> AsyncIterator[Controlled]:
    """Serve version 1 of one model, to be replaced from ``stock``."""
    async with stocked({Version("1"): stock}) as state:
        state.engine.control = state.repository if allowed else None
        if wire == "grpc":
            async with grpc_client(state.engine) as (client, _):
                yield Controlled(state, Grpc(client.channel))
            return
        transport: HttpTransport | AdminTransport = HttpTransport(HttpOptions(port=0))
        if wire == "admin":
            transport = AdminTransport(AdminOptions(port=0))
        (url,) = await transport.start(state.engine)
        try:
            async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                yield Controlled(state, Http(http))
        finally:
            await transport.stop(1.0)


@pytest.fixture(params=["http", "admin", "grpc"])
def wire(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def test_clients_may_neither_load_nor_unload_unless_the_server_lets_them(wire: str) -> None:
    async with served(wire, Stock([]), allowed=False) as state:
        for verb in (LOAD, UNLOAD):
            answer = await state.client.ask(verb, "fake")
            assert answer.status == 501
            assert "server.model_control" in answer.detail
        assert EXTENSION not in await state.client.extensions()
        assert await state.client.index() == [("fake", "1", "READY", "")]


async def test_a_client_loads_a_models_new_files_and_unloads_it(wire: str) -> None:
    async with served(wire, Stock([Version("2"), Version("3")])) as state:
        assert EXTENSION in await state.client.extensions()
        assert await state.client.ask(LOAD, "fake") == Answer(200)
        assert await state.client.index() == [("fake", "2", "READY", "")]
        assert await state.client.ask(UNLOAD, "fake", unload_dependents=False) == Answer(200)
        assert await state.client.index() == [("fake", "", "UNAVAILABLE", "unloaded")]
        assert (await state.client.ask(UNLOAD, "fake")).status == 404
        assert await state.client.ask(LOAD, "fake") == Answer(200)
        assert await state.client.index() == [("fake", "3", "READY", "")]


async def test_a_load_that_fails_says_why_and_changes_nothing(wire: str) -> None:
    broken = Version("2", error=LoadError("model.pt is damaged"))
    async with served(wire, Stock([broken])) as state:
        answer = await state.client.ask(LOAD, "fake")
        assert answer == Answer(500, "model 'fake' was not loaded: model.pt is damaged")
        assert await state.client.index() == [("fake", "1", "READY", "")]


async def test_a_model_that_was_not_configured_is_not_found(wire: str) -> None:
    async with served(wire, Stock([])) as state:
        for verb in (LOAD, UNLOAD):
            answer = await state.client.ask(verb, "nope")
            assert answer == Answer(404, "no model 'nope' is configured; there are fake")


@pytest.mark.parametrize("name", ["config", "file:1/model.pt"])
async def test_a_model_is_loaded_as_configured_and_not_from_the_request(
    wire: str, name: str
) -> None:
    async with served(wire, Stock([])) as state:
        answer = await state.client.ask(LOAD, "fake", **{name: "{}"})
        assert answer == Answer(501, f"parameter {name!r}: models are loaded as configured")


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"parameters": 1}'])
async def test_a_body_that_is_no_load_request_is_refused(body: bytes) -> None:
    async with stocked({Version("1"): Stock([])}) as state:
        state.engine.control = state.repository
        transport = HttpTransport(HttpOptions(port=0))
        (url,) = await transport.start(state.engine)
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            answer = await client.post("/v2/repository/models/fake/load", content=body)
        await transport.stop(1.0)
    assert answer.status_code == 400


async def test_a_repository_of_another_name_is_not_served() -> None:
    async with stocked({Version("1"): Stock([])}) as state, grpc_client(state.engine) as served:
        state.engine.control = state.repository
        request = oip.RepositoryModelLoadRequest(model_name="fake", repository_name="theirs")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await OipClient(served[0].channel).call("RepositoryModelLoad", request)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "'theirs'" in (refused.value.details() or "")
