"""A server that asks for API keys, and a way to ask it over each wire."""

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
from tests.fixtures.behind_front_ends import MakeFrontEnds, backdate
from tests.fixtures.requests import as_json, as_protobuf, random_request
from tests.fixtures.serving import Served, serving
from transports.http3.client import Http3Client
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
    asks: dict[str, Ask]
    channels: dict[str, grpc.aio.Channel]

    async def counted(self) -> Counter[tuple[str, str]]:
        """Return the requests by the name of their key, and what became of them."""
        await self.served.settled()
        return self.served.recorder.keys

    def passes(self, seconds: float) -> None:
        """Let time pass for the limits."""
        self.clock_s[0] += seconds
        if self.served.front_ends is not None:
            backdate(self.served.front_ends.ledger, seconds)

    def write(self, **limits: str) -> None:
        """Put the keys into the file, the ranker's with ``limits``."""
        write_keys(self.file, "\n".join(f"{name} = {value}" for name, value in limits.items()))


def write_keys(file: Path, said: str) -> None:
    """Put the keys into ``file``; ``said`` is about the ranker's."""
    hashes = [hashlib.sha256(key.encode()).hexdigest() for key in (KEY, OLD)]
    other = hashlib.sha256(OTHER.encode()).hexdigest()
    draft = file.with_suffix(".draft")
    draft.write_text(f"[ranker]\nsha256 = {hashes}\n{said}\n[other]\nsha256 = '{other}'\n")
    draft.replace(file)


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
async def keyed_server(
    certificates: Path, front_ends: MakeFrontEnds, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Keyed]:
    fake = FakeBackend(FakeOptions(max_batch_rows=64))
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    write_keys(file, "")
    running = serving(fake, certificates, front_ends=front_ends(api_keys=str(file)))
    async with running as served, AsyncExitStack() as stack:
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
        yield Keyed(served, file, [0.0], asks, channels)


@pytest_asyncio.fixture(loop_scope="module")
async def keyed(keyed_server: Keyed) -> Keyed:
    """Fresh keys without limits, and a clock that stands still, or seems to: rates are low."""
    keyed_server.write()
    await keyed_server.counted()
    served, clock_s = keyed_server.served, keyed_server.clock_s
    served.recorder.keys.clear()
    keyed_server.passes(1e9)  # nothing of what others asked is held against anybody
    count = served.recorder.keyed
    served.engine.access = Guard(keyed_server.file, count, lambda: clock_s[0])
    return keyed_server


on_module_loop = pytest.mark.asyncio(loop_scope="module")
