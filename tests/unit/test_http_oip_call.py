"""What the call flow does with an infer request: priority, timeout, records, disconnects."""

from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from scheduler.errors import Code, ServingError
from tests.fixtures.oip_http import (
    json_body,
)
from tests.fixtures.raw_http import post, raw
from tests.fixtures.requests import (
    DENSE,
    LENGTHS,
    VALUES,
)
from tests.fixtures.stub_engine import DENSE_FEATURES, SPEC, StubEngine
from tests.fixtures.stub_serving import http_served, problem


def stub_body(**fields: Any) -> bytes:
    lengths = np.ones((2, 1), np.int32)
    arrays = {DENSE: np.full((1, DENSE_FEATURES), 0.5, np.float32), LENGTHS: lengths}
    return json_body({**arrays, VALUES: np.ones(2, np.int64)}, **fields)


@pytest.mark.parametrize(
    ("parameters", "headers", "priority", "timeout_s"),
    [
        ({"priority": 1, "timeout": 20_000}, {}, 0, 0.02),
        ({"priority": 3}, {"x-request-priority": "1"}, 2, None),
        ({}, {"x-request-priority": "1"}, 1, None),
        ({"timeout": 20_000}, {"x-request-timeout-ms": "50"}, 0, 0.02),
        ({"timeout": 50_000}, {"x-request-timeout-ms": "20"}, 0, 0.02),
        ({"priority": 0, "timeout": 0}, {}, 0, None),
    ],
)
async def test_priority_and_timeout_reach_the_engine(
    parameters: dict[str, int], headers: dict[str, str], priority: int, timeout_s: float | None
) -> None:
    engine = StubEngine()
    async with http_served(engine) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        path = f"/v2/models/{SPEC.name}/infer"
        answer = await client.post(path, content=stub_body(parameters=parameters), headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.json()["outputs"][0]["data"] == [0.5]
    (request,) = engine.requests
    assert request.priority == priority
    assert request.timeout_s == (float("inf") if timeout_s is None else timeout_s)


@pytest.mark.parametrize(
    ("fields", "headers", "priority"),
    [({"priority": 2}, {}, 2), ({"priority": 2}, {"x-request-priority": "1"}, 2),
     ({}, {"x-request-priority": "1"}, 1)],
)  # fmt: skip
async def test_predict_has_a_priority_too(
    fields: dict[str, int], headers: dict[str, str], priority: int
) -> None:
    engine = StubEngine()
    document = {
        DENSE: [[0.5] * DENSE_FEATURES],
        "id_list_features": {"cat_0": [[1]], "cat_1": [[1]]},
        **fields,
    }
    async with http_served(engine) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        await client.post("/v1/predict", json=document, headers=headers)
    assert engine.requests[0].priority == priority


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None])
async def test_a_priority_of_predict_that_is_no_whole_number_is_refused(value: Any) -> None:
    engine = StubEngine()
    async with http_served(engine) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        body = {DENSE: [], "id_list_features": {"cat_0": [], "cat_1": []}, "priority": value}
        answer = await client.post("/v1/predict", content=orjson.dumps(body))
    assert "priority is" in problem(answer.content, 400)["detail"]


async def test_a_busy_answer_says_when_to_retry_and_each_request_is_recorded_once() -> None:
    engine = StubEngine()
    engine.failure = lambda: ServingError(Code.OVERLOADED, "busy", retry_after_s=2.5)
    async with http_served(engine) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        answer = await client.post(f"/v2/models/{SPEC.name}/infer", content=stub_body(id="a"))
        problem(answer.content, 429)
        assert answer.headers["retry-after"] == "3"
        (record,) = await engine.watcher.wait_for(1)
    assert (record.transport, record.model, record.rows) == ("http", SPEC.name, 1)
    assert (record.code, record.request_id) == (Code.OVERLOADED, "a")


async def test_a_client_that_closes_cancels_its_request() -> None:
    engine = StubEngine()
    engine.gate.clear()
    async with http_served(engine) as url:
        async with raw(url) as connection:
            await connection.send(post(stub_body(), path=f"/v2/models/{SPEC.name}/infer"))
            await engine.entered.wait()
        await engine.left.wait()
        (record,) = await engine.watcher.wait_for(1)
    assert record.code is Code.CANCELLED
