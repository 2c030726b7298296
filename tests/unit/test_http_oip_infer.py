"""Infer over HTTP/1.1 on a real socket: the same scores and the same refusals as predict's."""

import gzip
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.types import InferRequest
from tests.fixtures.oip_grpc import as_pairs, as_table
from tests.fixtures.oip_http import (
    INFER,
    JSON_BYTES,
    OipServed,
    binary_body,
    json_body,
    oip_served,
    one_id_each,
    predicted,
    read_answer,
)
from tests.fixtures.requests import (
    LENGTHS,
    VALUES,
    as_protobuf,
    features,
    random_request,
)
from tests.fixtures.stub_serving import PROBLEM, problem

FAKE = FakeBackend(FakeOptions()).spec
REQUEST = random_request(FAKE, rows=7, seed=3)
ONE_EACH = one_id_each(REQUEST)


@pytest.fixture
async def served() -> AsyncIterator[OipServed]:
    async with oip_served(max_request_bytes=1_000_000, max_json_bytes=500_000) as serving:
        yield serving


@pytest.mark.parametrize("binary_out", [False, True])
@pytest.mark.parametrize(
    ("arrays", "request_"),
    [
        (REQUEST.inputs, REQUEST),
        (as_pairs(REQUEST, features(FAKE)), REQUEST),
        (as_table(ONE_EACH), ONE_EACH),
    ],
    ids=["torchrec", "pairs", "table"],
)
async def test_every_encoding_scores_bit_for_bit_as_predict_does(
    served: OipServed, arrays: Any, request_: InferRequest, binary_out: bool
) -> None:
    expected = await predicted(served, request_)
    parameters = {"binary_data_output": binary_out}
    headers, binary = binary_body(arrays, parameters=parameters)
    for own, body in (({}, json_body(arrays, parameters=parameters)), (headers, binary)):
        answer = await served.infer(body, **own)
        assert answer.outputs["default"].tobytes() == expected.tobytes()
        assert answer.outputs["default"].shape == (7, 1)


async def test_a_binary_answer_says_how_much_of_it_is_json(served: OipServed) -> None:
    body = json_body(REQUEST.inputs, parameters={"binary_data_output": True})
    answer = await served.client.post(INFER, content=body)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert int(answer.headers[JSON_BYTES]) == len(answer.content) - 7 * 4
    answer = await served.client.post(INFER, content=json_body(REQUEST.inputs))
    assert answer.headers["content-type"] == "application/json"
    assert JSON_BYTES not in answer.headers


@pytest.mark.parametrize(
    "content_type", [None, "application/json", "application/octet-stream", "x"]
)
async def test_the_content_type_does_not_matter(
    served: OipServed, content_type: str | None
) -> None:
    headers, body = binary_body(REQUEST.inputs)
    named = {} if content_type is None else {"content-type": content_type}
    assert len((await served.infer(body, **headers, **named)).outputs["default"]) == 7


async def test_a_version_may_be_named(served: OipServed) -> None:
    answer = await served.infer(json_body(REQUEST.inputs), "/v2/models/fake/versions/1/infer")
    assert answer.document["model_version"] == "1"
    missing = await served.client.post(
        "/v2/models/fake/versions/9/infer", content=json_body(REQUEST.inputs)
    )
    assert "version '9'" in problem(missing.content, 404)["detail"]


async def test_the_id_is_echoed_as_it_is_and_names_the_request(served: OipServed) -> None:
    body = json_body(REQUEST.inputs, id='my "id"')
    answer = await served.client.post(INFER, content=body)
    assert answer.json()["id"] == 'my "id"'
    assert answer.headers["x-request-id"] == "myid"
    answer = await served.client.post(INFER, content=body, headers={"x-request-id": "job-7"})
    assert answer.json()["id"] == 'my "id"'
    assert answer.headers["x-request-id"] == "job-7"


async def test_a_request_that_names_nothing_is_called_by_its_trace(served: OipServed) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    answer = await served.client.post(
        INFER,
        content=json_body(REQUEST.inputs),
        headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"},
    )
    assert answer.headers["x-request-id"] == trace
    assert answer.headers["server-timing"].startswith("queue;dur=")


BOMB = gzip.compress(b" " * 2_000_000)


REFUSALS: list[tuple[bytes, dict[str, str], int, str]] = [
    (b"{", {}, 400, "not JSON"),
    (b"{}", {JSON_BYTES: "x"}, 400, JSON_BYTES),
    (b"{}", {JSON_BYTES: "-1"}, 400, JSON_BYTES),
    (b"{}", {JSON_BYTES: "500001"}, 413, "max_json_bytes"),
    (b"{}", {JSON_BYTES: "3"}, 400, "the body has 2 bytes"),
    (b"{}", {JSON_BYTES: "0"}, 400, "model fake has 2"),
    (b" " * 500_001, {}, 413, "max_json_bytes"),
    (b" " * 1_000_001, {JSON_BYTES: "2"}, 413, "max_request_bytes"),
    (b"{}", {"content-encoding": "br"}, 415, "content-encoding"),
    (b"{}", {"content-encoding": "gzip"}, 400, "not gzip"),
    (BOMB, {"content-encoding": "gzip"}, 413, "unpacked"),
    (BOMB, {"content-encoding": "gzip", JSON_BYTES: "2"}, 413, "max_request_bytes"),
    (b"{}", {"x-request-priority": "high"}, 400, "x-request-priority"),
    (b"{}", {"x-request-timeout-ms": "0"}, 400, "x-request-timeout-ms"),
]


async def test_each_refusal_is_a_problem(served: OipServed) -> None:
    for body, headers, status, named in REFUSALS:
        answer = await served.client.post(INFER, content=body, headers=headers)
        assert answer.headers["content-type"] == PROBLEM
        assert named in problem(answer.content, status)["detail"]


@pytest.mark.parametrize("path", [INFER, "/v2/models/fake/versions/1/infer"])
async def test_another_method_is_refused_and_post_named(served: OipServed, path: str) -> None:
    answer = await served.client.get(path)
    problem(answer.content, 405)
    assert answer.headers["allow"] == "POST"


def with_id(value: int) -> InferRequest:
    values = REQUEST.inputs[VALUES].copy()
    values[3] = value
    return InferRequest("fake", 7, {**REQUEST.inputs, VALUES: values})


def with_length(value: int) -> InferRequest:
    lengths = REQUEST.inputs[LENGTHS].copy()
    lengths[1, 2] = value
    return InferRequest("fake", 7, {**REQUEST.inputs, LENGTHS: lengths})


@pytest.mark.parametrize(
    "request_",
    [with_id(1000), with_id(-1), random_request(FAKE, rows=20_000, seed=1)],
    ids=["id", "negative", "rows"],
)
async def test_what_the_model_rules_out_is_refused_in_predicts_own_words(
    request_: InferRequest,
) -> None:
    async with oip_served() as served:
        headers = {"content-type": "application/x-protobuf"}
        other = await served.client.post(
            "/v1/models/fake/predict", content=as_protobuf(request_), headers=headers
        )
        expected = problem(other.content, 400)
        named, body = binary_body(request_.inputs)
        for answer in (
            await served.client.post(INFER, content=json_body(request_.inputs)),
            await served.client.post(INFER, content=body, headers=named),
        ):
            found = problem(answer.content, 400)
            assert {**found, "instance": ""} == {**expected, "instance": ""}


async def test_a_negative_length_is_refused(served: OipServed) -> None:
    answer = await served.client.post(INFER, content=json_body(with_length(-1).inputs))
    assert "-1" in problem(answer.content, 400)["detail"]


async def test_an_unknown_model_and_an_unknown_output_are_refused(served: OipServed) -> None:
    body = json_body(REQUEST.inputs, outputs=[{"name": "nope"}])
    answer = await served.client.post(INFER, content=body)
    assert "'nope'" in problem(answer.content, 400)["detail"]
    answer = await served.client.post("/v2/models/nope/infer", content=body)
    assert answer.status_code == 404
    assert "served: fake" in answer.json()["error"]


async def test_a_priority_that_no_class_has_is_refused(served: OipServed) -> None:
    for parameters, headers, sentence in (
        ({"priority": 5}, {}, "parameter priority: must be 1 to 4, or 0 for none, got 5"),
        ({"priority": None}, {}, "parameter priority: expected an integer of 0 or more, got None"),
        ({"timeout": None}, {}, "parameter timeout: expected an integer of 0 or more, got None"),
        ({"routing_key": None}, {}, "parameter routing_key: expected a string, got None"),
        ({}, {"x-request-priority": "4"}, "priority: must be 0 to 3, got 4"),
    ):
        body = json_body(REQUEST.inputs, parameters=parameters)
        answer = await served.client.post(INFER, content=body, headers=headers)
        assert problem(answer.content, 400)["detail"] == sentence


async def test_an_output_may_be_binary_while_the_request_was_json(served: OipServed) -> None:
    output = {"name": "default", "parameters": {"binary_data": True}}
    answer = await served.client.post(INFER, content=json_body(REQUEST.inputs, outputs=[output]))
    found = read_answer(answer.headers, answer.content)
    assert found.document["outputs"][0]["parameters"] == {"binary_data_size": 28}
