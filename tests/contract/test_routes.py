"""A version is asked by number or label, and chosen by the request's key, alike on every wire."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio
import httpx
import pytest

from backends.fake import FakeBackend
from scheduler.errors import Code
from scheduler.routing import MAX_KEY_CHARS, Part, Routes, pick
from scheduler.types import InferRequest, ModelSpec
from tests.fixtures.behind_front_ends import MakeFrontEnds
from tests.fixtures.gates import Watched
from tests.fixtures.oip_grpc import SERVICE, message_of
from tests.fixtures.oip_http import json_body
from tests.fixtures.requests import as_json, as_protobuf, random_request
from tests.fixtures.serving import Served, serving
from transports.http3.client import Http3Client

HALVES = (Part("stable", "1", 1), Part("canary", "2", 1))
KEYS = tuple("abcdef")
LABELS = {"stable": "1", "canary": "2"}


@dataclass(frozen=True)
class Clients:
    """One client of each transport; a method for each way to ask for a version, with a key.

    What comes of it is looked up in the server's own record.
    """

    served: Served
    http: httpx.AsyncClient
    http3: Http3Client
    channel: grpc.aio.Channel

    async def predict(self, request: InferRequest, version: str, key: str) -> None:
        path, body = _path("/v1/models/fake", version, "predict"), as_json(request, self._spec())
        await self.http.post(path, content=body, headers=_key(key))

    async def predict_http3(self, request: InferRequest, version: str, key: str) -> None:
        path = _path("/v1/models/fake", version, "predict")
        headers = {"content-type": "application/x-protobuf", **_key(key)}
        await self.http3.post(path, as_protobuf(request), headers)

    async def oip(self, request: InferRequest, version: str, key: str) -> None:
        path = _path("/v2/models/fake", version, "infer")
        await self.http.post(path, content=json_body(request.inputs), headers=_key(key))

    async def oip_parameter(self, request: InferRequest, version: str, key: str) -> None:
        body = json_body(request.inputs, parameters={"routing_key": key} if key else {})
        await self.http.post(_path("/v2/models/fake", version, "infer"), content=body)

    async def grpc(self, request: InferRequest, version: str, key: str) -> None:
        metadata = [("narsil-model", "fake"), ("narsil-version", version), *_key(key).items()]
        await self._call("/predictor.Predictor/Predict", as_protobuf(request), metadata)

    async def oip_grpc(self, request: InferRequest, version: str, key: str) -> None:
        message = message_of(request.inputs, model_name="fake", model_version=version)
        path = f"/{SERVICE}/ModelInfer"
        await self._call(path, message.SerializeToString(), [*_key(key).items()])

    async def oip_grpc_parameter(self, request: InferRequest, version: str, key: str) -> None:
        message = message_of(request.inputs, model_name="fake", model_version=version)
        if key:
            message.parameters["routing_key"].string_param = key
        await self._call(f"/{SERVICE}/ModelInfer", message.SerializeToString(), [])

    async def _call(self, path: str, body: bytes, metadata: list[tuple[str, str]]) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self.channel.unary_unary(path)(body, metadata=metadata)

    def _spec(self) -> ModelSpec:
        return self.served.engine.spec("fake")


def _path(start: str, version: str, end: str) -> str:
    return f"{start}/versions/{version}/{end}" if version else f"{start}/{end}"


def _key(key: str) -> dict[str, str]:
    return {"x-request-key": key} if key else {}


WIRES = (
    "predict", "predict_http3", "oip", "oip_parameter", "grpc", "oip_grpc", "oip_grpc_parameter",
)  # fmt: skip


@pytest.fixture
async def clients(certificates: Path, front_ends: MakeFrontEnds) -> AsyncIterator[Clients]:
    backend = FakeBackend(FakeBackend.Options())
    async with (
        serving(backend, certificates, front_ends=front_ends()) as served,
        contextlib.AsyncExitStack() as to,
    ):
        await served.engine.load(Watched(version="2"))
        served.engine.route("fake", Routes(labels=LABELS, split=HALVES))
        port = urlsplit(served.urls["http3"]).port or 0
        yield Clients(
            served,
            await to.enter_async_context(
                httpx.AsyncClient(base_url=served.urls["http"], timeout=60)
            ),
            await to.enter_async_context(Http3Client.connect("localhost", port, served.ca)),
            await to.enter_async_context(
                grpc.aio.insecure_channel(urlsplit(served.urls["grpc"]).netloc)
            ),
        )


async def outcome(
    clients: Clients, wire: str, version: str = "", key: str = "", **wrong: int
) -> tuple[str, Code | None]:
    """Ask, and return the version that the server counts the request for, and what came of it."""
    request = random_request(FakeBackend(FakeBackend.Options()).spec, 2, seed=1)
    if wrong:
        request.inputs["id_list_features.values"][:1] = wrong["id"]
    answers = clients.served.recorder.answers
    before = len(answers)
    await getattr(clients, wire)(request, version, key)
    await clients.served.recorder.until(lambda: len(answers) > before)
    return answers[-1].version, answers[-1].code


async def test_versions_are_asked_for_by_number_and_label_and_chosen_by_key_on_every_wire(
    clients: Clients,
) -> None:
    chosen = {key: pick(HALVES, "fake", key).version for key in KEYS}
    assert {*chosen.values()} == {"1", "2"}
    for wire in WIRES:
        for name, version in {"1": "1", "2": "2", **LABELS}.items():
            assert await outcome(clients, wire, version=name) == (version, None), wire
        unknown = await outcome(clients, wire, version="nope")
        assert unknown == ("", Code.MODEL_NOT_FOUND), wire
        for key, version in chosen.items():
            assert await outcome(clients, wire, key=key) == (version, None), wire
        # Also what fails counts for the version that it was for.
        for key in KEYS[:2]:
            wrong = await outcome(clients, wire, key=key, id=10**6)
            assert wrong == (chosen[key], Code.INVALID_REQUEST), wire
        _, code = await outcome(clients, wire, key="k" * (MAX_KEY_CHARS + 1))
        assert code is Code.INVALID_REQUEST, wire
        seen: set[str] = set()
        while seen != {"1", "2"}:  # without a key each draws lots
            seen.add((await outcome(clients, wire))[0])


async def test_pages_show_labels_and_shares_and_a_key_that_is_no_text_is_refused(
    clients: Clients,
) -> None:
    request = random_request(FakeBackend(FakeBackend.Options()).spec, 2, seed=1)
    body = json_body(request.inputs, parameters={"routing_key": 7})
    answer = await clients.http.post("/v2/models/fake/infer", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"] == "parameter routing_key: expected a string, got 7"
    for page in ("/v2/models/fake/versions/canary", "/v1/models/fake/versions/canary"):
        properties = (await clients.http.get(page)).json()["properties"]
        assert (properties["labels"], properties["share"]) == ("canary", "0.5")
    listed = (await clients.http.get("/v1/models")).json()
    assert [one["version"] for one in listed["models"]] == ["1", "2"]
    assert listed["refused"] == []
