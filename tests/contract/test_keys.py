"""API keys and their limits, over every wire alike."""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import grpc.aio
import httpx
import orjson
import pytest
import pytest_asyncio

from app.access.guard import Guard
from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code
from tests.fixtures.oip_grpc import SERVICE as OIP
from tests.fixtures.oip_grpc import message_of
from tests.fixtures.requests import as_json, as_protobuf, random_request
from tests.fixtures.serving import Served, serving
from transports.http3.client import Http3Client
from transports.proto import open_inference_pb2 as oip
from transports.status import STATUS

KEY, OTHER, OLD = "the-rankers-key", "the-others-key", "the-rankers-former-key"
WIRES = ("http", "http3", "grpc", "grpc-grpcio")
Headers: TypeAlias = dict[str, str]
BEARER = {"authorization": f"Bearer {KEY}"}


@dataclass(frozen=True)
class Outcome:
    """The codes that a status may mean (none: scores), the words and the headers or trailers."""

    codes: frozenset[Code]
    detail: str = ""
    headers: Headers = field(default_factory=dict)


Ask: TypeAlias = Callable[[int, Headers], Awaitable[Outcome]]


@dataclass
class Keyed:
    """A server that asks for keys, and a way to ask over each wire."""

    served: Served
    file: Path
    clock_s: list[float]
    counted: Counter[tuple[str, str]]
    asks: dict[str, Ask]
    channels: dict[str, grpc.aio.Channel]

    def write(self, **limits: str) -> None:
        """Put the keys into the file, the ranker's with ``limits``."""
        said = "\n".join(f"{name} = {value}" for name, value in limits.items())
        hashes = [hashlib.sha256(key.encode()).hexdigest() for key in (KEY, OLD)]
        other = hashlib.sha256(OTHER.encode()).hexdigest()
        text = f"[ranker]\nsha256 = {hashes}\n{said}\n[other]\nsha256 = '{other}'\n"
        draft = self.file.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(self.file)


def http_outcome(status: int, headers: Headers, body: bytes) -> Outcome:
    if status == 200:
        return Outcome(frozenset())
    codes = frozenset(code for code, known in STATUS.items() if known.http == status)
    problem = orjson.loads(body)
    assert problem["type"] in {f"urn:narsil:error:{code.value}" for code in codes}
    return Outcome(codes, problem["detail"], headers)


def grpc_asker(channel: grpc.aio.Channel, spec: Any) -> Ask:
    call = channel.unary_unary("/predictor.Predictor/Predict")

    async def ask(rows: int, headers: Headers) -> Outcome:
        body = as_protobuf(random_request(spec, rows, seed=1))
        try:
            await call(body, metadata=tuple(headers.items()), timeout=20)
        except grpc.aio.AioRpcError as error:
            codes = frozenset(code for code, known in STATUS.items() if known.grpc == error.code())
            trailers = {str(k): str(v) for k, v in error.trailing_metadata() or ()}
            return Outcome(codes, error.details() or "", trailers)
        return Outcome(frozenset())

    return ask


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyed(
    certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Keyed]:
    fake = FakeBackend(FakeOptions(max_batch_rows=64))
    async with serving(fake, certificates) as served, AsyncExitStack() as stack:
        spec = served.engine.spec("")
        client = httpx.AsyncClient(base_url=served.urls["http"], timeout=20)
        http = await stack.enter_async_context(client)
        port = urlsplit(served.urls["http3"]).port or 0
        http3 = await stack.enter_async_context(Http3Client.connect("localhost", port, served.ca))
        channels = {}
        for name in ("grpc", "grpc-grpcio"):
            target = urlsplit(served.urls[name]).netloc
            channel = grpc.aio.insecure_channel(target)
            channels[name] = await stack.enter_async_context(channel)

        async def ask_http(rows: int, headers: Headers) -> Outcome:
            body = as_json(random_request(spec, rows, seed=1), spec)
            answer = await http.post("/v1/predict", content=body, headers=headers)
            return http_outcome(answer.status_code, dict(answer.headers), answer.content)

        async def ask_http3(rows: int, headers: Headers) -> Outcome:
            body = as_json(random_request(spec, rows, seed=1), spec)
            answer = await http3.post("/v1/predict", body, headers)
            return http_outcome(answer.status, dict(answer.headers), answer.body)

        asks = {
            "http": ask_http,
            "http3": ask_http3,
            **{name: grpc_asker(channel, spec) for name, channel in channels.items()},
        }
        file = tmp_path_factory.mktemp("keys") / "keys.toml"
        state = Keyed(served, file, [0.0], Counter(), asks, channels)
        yield state


@pytest.fixture(autouse=True)
def guarded(keyed: Keyed) -> Guard:
    """Fresh keys without limits, and a clock that stands still."""
    keyed.write()
    keyed.counted.clear()

    def count(key: str, outcome: str) -> None:
        keyed.counted[key, outcome] += 1

    keyed.served.engine.access = guard = Guard(keyed.file, count, lambda: keyed.clock_s[0])
    return guard


on_module_loop = pytest.mark.asyncio(loop_scope="module")


@on_module_loop
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "headers",
    [
        BEARER,
        {"authorization": f"bearer  {OLD}"},
        {"x-api-key": KEY},
        {"authorization": "Basic dTpw", "x-api-key": OTHER},
    ],
    ids=["bearer", "the former key", "x-api-key", "beside another scheme"],
)
async def test_a_key_that_is_known_gets_scores(keyed: Keyed, wire: str, headers: Headers) -> None:
    assert not (await keyed.asks[wire](2, headers)).codes


@on_module_loop
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        ({}, "missing"),
        ({"authorization": "Bearer"}, "missing"),
        ({"authorization": "Basic dTpw"}, "missing"),
        ({"x-api-key": KEY + "x"}, "unknown"),
        ({"x-api-key": KEY[:-1]}, "unknown"),
        ({"authorization": f"Bearer {'k' * 4000}"}, "unknown"),
        # The hash is no key.
        ({"x-api-key": hashlib.sha256(KEY.encode()).hexdigest()}, "unknown"),
        # The first scheme decides.
        ({"authorization": "Bearer x", "x-api-key": KEY}, "unknown"),
    ],
    ids=["none", "empty", "another scheme", "longer", "shorter", "huge", "the hash", "two"],
)
async def test_any_other_is_refused_in_the_same_words_before_its_body_is_read(
    keyed: Keyed, wire: str, headers: Headers, outcome: str
) -> None:
    refused = await keyed.asks[wire](2, headers)
    assert refused.codes == {Code.UNAUTHENTICATED}
    words = {"missing": "an API key is needed", "unknown": "the API key is not known"}
    assert refused.detail.startswith(words[outcome])
    if wire.startswith("http"):
        assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.headers["x-request-id"]
    assert keyed.counted == {("", outcome): 1}
    assert keyed.served.recorder.answers[-1].code is Code.UNAUTHENTICATED


@on_module_loop
@pytest.mark.parametrize("wire", WIRES)
async def test_requests_over_the_rate_are_told_when_to_come_back_and_then_served(
    keyed: Keyed, guarded: Guard, wire: str
) -> None:
    keyed.write(requests_per_s="2", burst_s="1.5")
    ask = keyed.asks[wire]
    for _ in range(3):
        assert not (await ask(1, BEARER)).codes
    refused = await ask(1, BEARER)
    assert Code.RATE_LIMITED in refused.codes
    assert "the key ranker may ask for 2 requests a second (requests_per_s)" in refused.detail
    again = refused.headers["retry-after" if wire.startswith("http") else "grpc-retry-pushback-ms"]
    assert again == ("1" if wire.startswith("http") else "500")
    assert keyed.counted == {("ranker", "ok"): 3, ("ranker", "rate_limited"): 1}
    assert not (await ask(1, {"x-api-key": OTHER})).codes  # a neighbour
    keyed.clock_s[0] += 0.5
    assert not (await ask(1, BEARER)).codes


@on_module_loop
@pytest.mark.parametrize("wire", WIRES)
async def test_rows_over_the_rate_are_refused_and_a_request_larger_than_the_burst_is_paid_off(
    keyed: Keyed, wire: str
) -> None:
    keyed.write(rows_per_s="10")
    ask = keyed.asks[wire]
    assert not (await ask(6, BEARER)).codes
    refused = await ask(6, BEARER)
    assert Code.RATE_LIMITED in refused.codes
    assert "10 rows a second (rows_per_s)" in refused.detail
    assert not (await ask(4, BEARER)).codes  # what is left
    assert Code.RATE_LIMITED in (await ask(1, BEARER)).codes
    keyed.clock_s[0] += 1.0
    assert not (await ask(30, BEARER)).codes
    keyed.clock_s[0] += 1.9
    assert Code.RATE_LIMITED in (await ask(1, BEARER)).codes
    keyed.clock_s[0] += 0.3
    assert not (await ask(1, BEARER)).codes


@on_module_loop
async def test_one_limit_holds_for_all_wires_together(keyed: Keyed) -> None:
    keyed.write(requests_per_s="4")
    for ask in keyed.asks.values():
        assert not (await ask(1, BEARER)).codes
    for ask in keyed.asks.values():
        assert Code.RATE_LIMITED in (await ask(1, BEARER)).codes


@on_module_loop
@pytest.mark.parametrize("wire", WIRES)
async def test_a_key_taken_out_of_the_file_is_refused_from_then_on(keyed: Keyed, wire: str) -> None:
    ask = keyed.asks[wire]
    assert not (await ask(1, BEARER)).codes
    keyed.file.write_text(keyed.file.read_text().replace("[ranker]", "[unused]").replace(
        hashlib.sha256(KEY.encode()).hexdigest(), "0" * 64))  # fmt: skip
    assert (await ask(1, BEARER)).codes == {Code.UNAUTHENTICATED}
    assert not (await ask(1, {"x-api-key": OTHER})).codes


@on_module_loop
@pytest.mark.parametrize("name", ["grpc", "grpc-grpcio"])
async def test_each_request_of_a_stream_counts_and_an_unknown_key_opens_none(
    keyed: Keyed, name: str
) -> None:
    call = keyed.channels[name].stream_stream(
        f"/{OIP}/ModelStreamInfer", oip.ModelInferRequest.SerializeToString,
        oip.ModelStreamInferResponse.FromString,
    )  # fmt: skip
    asked = message_of(random_request(keyed.served.engine.spec(""), 1, seed=1).inputs)
    unknown = call(metadata=(("x-api-key", "nobody"),), timeout=20)
    assert await unknown.code() is grpc.StatusCode.UNAUTHENTICATED
    keyed.write(requests_per_s="2")
    stream = call(metadata=tuple(BEARER.items()), timeout=20)
    errors = []
    for _ in range(3):
        await stream.write(asked)
        errors.append((await stream.read()).error_message)
    assert errors[:2] == ["", ""]
    assert "2 requests a second" in errors[2]
    keyed.clock_s[0] += 1.0
    keyed.file.write_text("[other]\nsha256 = '" + "0" * 64 + "'\n")
    await stream.write(asked)
    assert (await stream.read()).error_message == "the API key is not known"
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK


OPEN = (
    "/livez",
    "/readyz",
    "/startupz",
    "/healthz",
    "/ping",
    "/v2/health/live",
    "/v2/health/ready",
)
CLOSED = (
    "/v1/models", "/v1/models/fake", "/v2", "/v2/models/fake", "/v2/models/fake/ready",
    "/v2/models/fake/config", "/v2/models/stats", "/docs", "/openapi.json", "/nowhere", "//livez",
    "/livez/", "/LIVEZ",
)  # fmt: skip


@on_module_loop
async def test_probes_are_open_and_every_other_path_needs_a_key(keyed: Keyed) -> None:
    async with httpx.AsyncClient(base_url=keyed.served.urls["http"]) as http:
        for path in OPEN:
            assert (await http.get(path)).status_code == 200, path
        for path in CLOSED:
            without = await http.get(path)
            assert without.status_code == 401, path
            assert without.json()["type"] == "urn:narsil:error:unauthenticated"
            assert (await http.get(path, headers=BEARER)).status_code != 401, path
        assert (await http.post("/v2/repository/index")).status_code == 401


def oip_call(channel: grpc.aio.Channel, name: str, key: str) -> Any:
    request = getattr(oip, f"{name}Request")
    answer = getattr(oip, f"{name}Response").FromString
    call = channel.unary_unary(f"/{OIP}/{name}", request.SerializeToString, answer)
    return call(request(), metadata=(("x-api-key", key),) if key else (), timeout=20)


@on_module_loop
@pytest.mark.parametrize("name", ["grpc", "grpc-grpcio"])
async def test_health_is_open_over_grpc_and_what_tells_of_models_needs_a_key(
    keyed: Keyed, name: str
) -> None:
    channel = keyed.channels[name]
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert await check(b"", timeout=20)
    for open_to_all in ("ServerLive", "ServerReady"):
        await oip_call(channel, open_to_all, "")
    for method in ("ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig",
                   "ModelStatistics", "RepositoryIndex", "RepositoryModelLoad"):  # fmt: skip
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await oip_call(channel, method, "")
        assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED, method


@on_module_loop
@pytest.mark.parametrize("name", ["grpc", "grpc-grpcio"])
@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/v2/repository/models/fake/unload", "RepositoryModelUnload"),
        ("/v2/systemsharedmemory/region/a/register", "SystemSharedMemoryRegister"),
        ("/v2/systemsharedmemory/unregister", "SystemSharedMemoryUnregister"),
    ],
)
async def test_only_a_key_with_control_may_load_unload_and_register_memory(
    keyed: Keyed, name: str, path: str, method: str
) -> None:
    async with httpx.AsyncClient(base_url=keyed.served.urls["http"]) as http:
        assert (await http.post(path, headers=BEARER)).status_code == 403
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await oip_call(keyed.channels[name], method, KEY)
        assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
        keyed.write(control="true")
        # Let through, to what is not served without server.model_control or shared_memory.
        assert (await http.post(path, headers=BEARER)).status_code == 501
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await oip_call(keyed.channels[name], method, KEY)
        assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED
