"""Predict over HTTP/1.1 on a real socket: answers, errors, headers, records."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import orjson
import pytest

from scheduler.errors import Code, ServingError
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import (
    JSON,
    PROBLEM,
    PROTOBUF,
    http_served,
    json_body,
    problem,
    protobuf_body,
)
from transports.codecs.predictor_client import decode_response

PREDICT = "/v1/models/dlrm/predict"


@pytest.fixture
def engine() -> StubEngine:
    return StubEngine()


@pytest.fixture
async def client(engine: StubEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        http_served(engine, max_request_bytes=100_000) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        yield http


@pytest.mark.parametrize("path", ["/v1/predict", PREDICT, "/v1/models/%64lrm/predict"])
async def test_json_in_gives_json_out(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.post(path, content=json_body([0.25, 0.5]))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == JSON
    assert answer.json() == {
        "model": "dlrm",
        "version": "1",
        "predictions": {"default": [0.25, 0.5]},
    }


async def test_protobuf_in_gives_protobuf_out(client: httpx.AsyncClient) -> None:
    headers = {"content-type": PROTOBUF}
    answer = await client.post(PREDICT, content=protobuf_body([0.25, 0.5]), headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == PROTOBUF
    assert decode_response(answer.content)["default"].tolist() == [0.25, 0.5]


async def test_the_answer_says_where_the_time_went(client: httpx.AsyncClient) -> None:
    answer = await client.post(PREDICT, content=json_body([1.0]))
    assert answer.headers["server-timing"] == "queue;dur=0.120, gather;dur=0.050, compute;dur=0.900"
    assert answer.headers["server"] == "narsil"
    assert "date" in answer.headers


async def test_a_request_id_is_echoed_and_reaches_the_engine_and_the_record(
    client: httpx.AsyncClient, engine: StubEngine
) -> None:
    headers = {"x-request-id": "job-7"}
    answer = await client.post(PREDICT, content=json_body([1.0], id="body"), headers=headers)
    assert answer.headers["x-request-id"] == "job-7"
    assert engine.requests[0].id == "job-7"
    assert (await engine.watcher.wait_for(1))[0].request_id == "job-7"


async def test_without_the_header_the_id_of_the_body_counts(client: httpx.AsyncClient) -> None:
    answer = await client.post(PREDICT, content=json_body([1.0], id="from body"))
    assert answer.headers["x-request-id"] == "frombody"


async def test_an_error_answer_carries_an_id_too(client: httpx.AsyncClient) -> None:
    answer = await client.post(PREDICT, content=b"{")
    assert answer.status_code == 400
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("header_ms", "body_ms", "timeout_s"), [("50", 20, 0.02), ("20", 50, 0.02), ("20", None, 0.02)]
)
async def test_the_smaller_timeout_counts(
    client: httpx.AsyncClient,
    engine: StubEngine,
    header_ms: str,
    body_ms: float | None,
    timeout_s: float,
) -> None:
    fields = {} if body_ms is None else {"timeout_ms": body_ms}
    headers = {"x-request-timeout-ms": header_ms}
    await client.post(PREDICT, content=json_body([1.0], **fields), headers=headers)
    assert engine.requests[0].timeout_s == timeout_s


async def test_a_success_is_recorded_once(client: httpx.AsyncClient, engine: StubEngine) -> None:
    await client.post(PREDICT, content=json_body([1.0, 2.0]))
    (record,) = await engine.watcher.wait_for(1)
    assert (record.transport, record.model, record.rows, record.code) == ("http", "dlrm", 2, None)
    assert record.duration_s > 0


@dataclass(frozen=True)
class Refusal:
    """A bad request, and what its answer must say."""

    status: int
    code: Code
    named: str
    body: bytes = b"{}"
    path: str = PREDICT
    headers: dict[str, str] = field(default_factory=dict)


REFUSALS = [
    Refusal(400, Code.INVALID_REQUEST, "JSON", body=b"{"),
    Refusal(400, Code.INVALID_REQUEST, "Prediction", b"\xff", headers={"content-type": PROTOBUF}),
    Refusal(415, Code.INVALID_REQUEST, "text/csv", headers={"content-type": "text/csv"}),
    Refusal(400, Code.INVALID_REQUEST, "timeout-ms", headers={"x-request-timeout-ms": "x"}),
    Refusal(404, Code.MODEL_NOT_FOUND, "nope", path="/v1/models/nope/predict"),
    Refusal(413, Code.PAYLOAD_TOO_LARGE, "100001", body=b" " * 100_001),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.named)
async def test_each_refusal_is_a_problem_and_recorded_once(
    client: httpx.AsyncClient, engine: StubEngine, refusal: Refusal
) -> None:
    answer = await client.post(refusal.path, content=refusal.body, headers=refusal.headers)
    assert answer.status_code == refusal.status
    assert answer.headers["content-type"] == PROBLEM
    document = problem(answer.content, refusal.status)
    assert refusal.named in document["detail"]
    assert document["instance"] == refusal.path
    (record,) = await engine.watcher.wait_for(1)
    assert (record.code, record.detail) == (refusal.code, document["detail"])
    assert not engine.requests


@pytest.mark.parametrize("code", [Code.OVERLOADED, Code.UNAVAILABLE])
async def test_busy_answers_say_when_to_retry(
    client: httpx.AsyncClient, engine: StubEngine, code: Code
) -> None:
    engine.failure = lambda: ServingError(code, "busy", retry_after_s=2.5)
    answer = await client.post(PREDICT, content=json_body([1.0]))
    assert answer.headers["retry-after"] == "3"


async def test_an_unexpected_exception_is_logged_and_not_sent(
    client: httpx.AsyncClient, engine: StubEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.failure = lambda: RuntimeError("secret")
    answer = await client.post(PREDICT, content=json_body([1.0]))
    problem(answer.content, 500)
    assert b"secret" not in answer.content
    (record,) = await engine.watcher.wait_for(1)
    assert record.code is Code.INTERNAL
    assert "secret" in caplog.text


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
async def test_another_method_is_refused_and_post_named(
    client: httpx.AsyncClient, method: str
) -> None:
    answer = await client.request(method, PREDICT)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    if method != "HEAD":
        problem(answer.content, 405)


async def test_json_over_its_own_limit_is_refused_and_protobuf_is_not(engine: StubEngine) -> None:
    async with (
        http_served(engine, max_json_bytes=100) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        refused = await http.post(PREDICT, content=json_body([0.5] * 10))
        assert "max_json_bytes" in problem(refused.content, 413)["detail"]
        body, headers = protobuf_body([0.5] * 10), {"content-type": PROTOBUF}
        assert len(body) > 100
        assert (await http.post(PREDICT, content=body, headers=headers)).status_code == 200


async def test_bodies_over_the_memory_for_all_are_refused_until_there_is_room(
    engine: StubEngine,
) -> None:
    body = json_body([0.5])
    limits = {"max_request_bytes": len(body), "max_buffered_bytes": 2 * len(body) - 1}
    async with (
        http_served(engine, **limits) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        engine.gate.clear()
        holding = asyncio.create_task(http.post(PREDICT, content=body))
        await engine.entered.wait()
        refused = await http.post(PREDICT, content=body)
        assert "max_buffered_bytes" in problem(refused.content, 429)["detail"]
        assert refused.headers["retry-after"] == "1"
        engine.gate.set()
        assert (await holding).status_code == 200
        assert (await http.post(PREDICT, content=body)).status_code == 200


async def test_zero_rows_are_an_empty_answer(client: httpx.AsyncClient) -> None:
    answer = await client.post(PREDICT, content=json_body([]))
    assert answer.json()["predictions"] == {"default": []}


async def test_a_client_that_closes_cancels_its_request(engine: StubEngine) -> None:
    engine.gate.clear()
    async with http_served(engine) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            asking = asyncio.create_task(client.post(PREDICT, content=json_body([1.0])))
            await engine.entered.wait()
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
        await engine.left.wait()
        (record,) = await engine.watcher.wait_for(1)
    assert record.code is Code.CANCELLED
    assert record.rows == 1


async def test_a_hundred_requests_on_one_connection_are_a_hundred_records(
    client: httpx.AsyncClient, engine: StubEngine
) -> None:
    for score in range(100):
        answer = await client.post(PREDICT, content=json_body([float(score)]))
        assert orjson.loads(answer.content)["predictions"]["default"] == [score]
    assert len(await engine.watcher.wait_for(100)) == 100
