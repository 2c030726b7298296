"""The Open Inference Protocol over HTTP/1.1 and HTTP/3 beside every other wire, one server for all.

Same request, same scores bit for bit; same fault, same code and same words.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio
import httpx
import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest
from tests.fixtures.oip_grpc import OipClient, scores_of
from tests.fixtures.oip_http import INFER, binary_body, json_body, read_answer
from tests.fixtures.requests import LENGTHS, VALUES, as_json, as_protobuf, random_request
from tests.fixtures.serving import Served, serving
from tests.fixtures.stub_serving import problem
from tests.fixtures.wires import WIRES, connect
from transports.http3.client import Http3Client
from transports.status import STATUS

MAX_ROWS = 100
SPEC = FakeBackend(FakeOptions()).spec
GRPC = {status.grpc: status.http for status in STATUS.values()}


@dataclass(frozen=True)
class Outcome:
    """Scores as bytes, or the HTTP status of the code and the detail."""

    scores: bytes = b""
    status: int = 200
    detail: str = ""


Ask = Callable[[InferRequest], Awaitable[Outcome]]


@pytest.fixture
async def wires(certificates: Path) -> AsyncIterator[dict[str, Ask]]:
    """Every way to ask the same server."""
    backend = FakeBackend(FakeOptions(max_batch_rows=MAX_ROWS))
    options = SchedulerOptions(max_request_rows=MAX_ROWS)
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(backend, certificates, options))
        asks = {name: await predict(name, served, stack) for name in WIRES}
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=served.urls["http"]))
        port = urlsplit(served.urls["http3"]).port or 0
        http3 = await stack.enter_async_context(Http3Client.connect("localhost", port, served.ca))
        target = urlsplit(served.urls["grpc"]).netloc
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(target))
        yield {
            **asks,
            "oip http json": over_http(http, lambda request: ({}, json_body(request.inputs))),
            "oip http binary": over_http(http, lambda request: binary_body(request.inputs)),
            "oip http3 json": over_http3(http3, lambda request: ({}, json_body(request.inputs))),
            "oip http3 binary": over_http3(http3, lambda request: binary_body(request.inputs)),
            "oip grpc": over_grpc(OipClient(channel)),
        }


async def predict(name: str, served: Served, stack: AsyncExitStack) -> Ask:
    wire = await stack.enter_async_context(connect(name, served))

    async def ask(request: InferRequest) -> Outcome:
        body = as_json(request, SPEC) if wire.json else as_protobuf(request)
        answer = await wire.send(body)
        if answer.codes:
            status = min(STATUS[code].http for code in answer.codes)
            return Outcome(status=status, detail=answer.detail)
        return Outcome(answer.scores["default"].tobytes())

    return ask


Encode = Callable[[InferRequest], tuple[dict[str, str], bytes]]


def over_http(client: httpx.AsyncClient, encode: Encode) -> Ask:
    async def ask(request: InferRequest) -> Outcome:
        headers, body = encode(request)
        answer = await client.post(INFER, content=body, headers=headers)
        return outcome(answer.status_code, dict(answer.headers), answer.content)

    return ask


def over_http3(client: Http3Client, encode: Encode) -> Ask:
    async def ask(request: InferRequest) -> Outcome:
        headers, body = encode(request)
        answer = await client.post(INFER, body, headers)
        return outcome(answer.status, dict(answer.headers), answer.body)

    return ask


def over_grpc(client: OipClient) -> Ask:
    async def ask(request: InferRequest) -> Outcome:
        try:
            answer = await client.infer(request.inputs, model_name="fake")
        except grpc.aio.AioRpcError as error:
            return Outcome(status=GRPC[error.code()], detail=error.details() or "")
        return Outcome(scores_of(answer).tobytes())

    return ask


def outcome(status: int, headers: dict[str, str], body: bytes) -> Outcome:
    if status != 200:
        return Outcome(status=status, detail=problem(body, status)["detail"])
    return Outcome(read_answer(headers, body).outputs["default"].tobytes())


async def test_every_wire_gives_the_same_scores(wires: dict[str, Ask]) -> None:
    for rows in (0, 1, 10, MAX_ROWS):
        request = random_request(SPEC, rows, seed=rows)
        outcomes = {name: await ask(request) for name, ask in wires.items()}
        assert len(set(outcomes.values())) == 1, outcomes
        assert len(outcomes["grpc"].scores) == rows * 4


def changed(name: str, index: int, value: int) -> InferRequest:
    request = random_request(SPEC, rows=4, seed=2)
    array = request.inputs[name].copy()
    array.flat[index] = value
    return replace(request, inputs={**request.inputs, name: array})


async def test_every_wire_refuses_in_the_same_words(wires: dict[str, Ask]) -> None:
    large, small = changed(VALUES, 3, 1000), changed(VALUES, 0, -1)
    for request in (large, small, random_request(SPEC, MAX_ROWS + 1, seed=1)):
        outcomes = {name: await ask(request) for name, ask in wires.items()}
        assert len(set(outcomes.values())) == 1, outcomes
        assert outcomes["oip http json"].status == 400


async def test_lengths_that_do_not_add_up_are_refused_alike(wires: dict[str, Ask]) -> None:
    """Over the wires that have TorchRec's tensors as they are, and do not look into them."""
    request = changed(LENGTHS, 0, 9)
    assert int(np.sum(request.inputs[LENGTHS])) != request.inputs[VALUES].size
    outcomes = {await ask(request) for name, ask in wires.items() if name.startswith("oip")}
    assert len(outcomes) == 1
    assert outcomes.pop().status == 400
