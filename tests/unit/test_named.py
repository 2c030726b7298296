"""Whose request it was, as metrics and statistics count it, however early it was refused."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.engine import Engine
from scheduler.errors import Code
from scheduler.options import SchedulerOptions
from scheduler.routing import Part, Routes, pick
from tests.fixtures.gates import Gate, Watched, make_request
from tests.fixtures.grpc_calls import Answers, grpc_client, grpc_options, grpc_serving, status_of
from tests.fixtures.oip_grpc import OipClient
from tests.fixtures.oip_http import oip_served
from tests.fixtures.requests import as_protobuf
from transports.http.server import HttpOptions, HttpTransport
from transports.named import Named, named

KNOWN = Named("fake", "2")


async def two_models(observed: Answers) -> Engine:
    """Return an open engine with one model in two versions and one more."""
    engine = Engine(SchedulerOptions(), observed)
    await engine.load(Watched(version="1"))
    await engine.load(Watched(version="2"))
    await engine.load(FakeBackend(FakeOptions(name="other")))
    engine.open()
    return engine


async def test_only_what_is_served_has_a_name() -> None:
    engine = await two_models(Answers())
    asked = [("fake", ""), ("fake", "1"), ("fake", "9"), ("nope", ""), ("nope", "1"), ("", "")]
    assert [named(engine, *names) for names in asked] == [
        Named("fake", "2"), Named("fake", "1"), Named("fake"), Named(), Named(), Named(),
    ]  # fmt: skip
    await engine.close(0.0)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "counted"),
    [
        ("GET", "/v1/models/fake/predict", {}, 405, KNOWN),
        ("POST", "/v1/models/fake/predict", {"content-type": "text/html"}, 415, KNOWN),
        ("POST", "/v1/models/fake/predict", {"x-request-priority": "?"}, 400, KNOWN),
        ("POST", "/v2/models/fake/infer", {"content-encoding": "br"}, 415, KNOWN),
        ("POST", "/v2/models/fake/versions/1/infer", {}, 413, Named("fake", "1")),
        ("POST", "/v2/models/fake/versions/9/infer", {}, 404, Named("fake", "")),
        ("POST", "/v2/models/nope/infer", {}, 404, Named()),
        ("POST", "/v1/predict", {}, 404, Named()),
    ],
)
async def test_a_request_refused_over_http_counts_for_the_model_in_its_path(
    method: str, path: str, headers: dict[str, str], status: int, counted: Named
) -> None:
    observed = Answers()
    async with oip_served(Watched(version="1"), observed, max_request_bytes=64) as served:
        await served.engine.load(Watched(version="2"))
        await served.engine.load(FakeBackend(FakeOptions(name="other")))
        body = b"{" + b" " * (64 if status == 413 else 0) + b"}"
        answer = await served.client.request(method, path, content=body, headers=headers)
        assert answer.status_code == status
        record = await observed.answer()
        assert Named(record.model, record.version) == counted


@pytest.mark.parametrize(
    ("model", "body", "counted"),
    [
        ("fake", b"\xff", KNOWN),
        ("fake", bytes(65), KNOWN),
        ("nope", bytes(65), Named()),
        ("", b"", Named()),
    ],
)
async def test_a_predict_call_refused_over_grpc_counts_for_the_model_in_its_metadata(
    model: str, body: bytes, counted: Named
) -> None:
    observed = Answers()
    engine = await two_models(observed)
    async with grpc_client(engine, grpc_options(max_message_bytes=64)) as (client, _):
        metadata = (("narsil-model", model),) if model else ()
        await status_of(client.predict_bytes(body, metadata=metadata))
        record = await observed.answer()
    await engine.close(0.0)
    assert Named(record.model, record.version) == counted


@pytest.mark.parametrize(
    ("asked", "counted"),
    [
        ({"model_name": "fake", "model_version": "1"}, Named("fake", "1")),
        ({"model_name": "fake", "model_version": "9"}, Named("fake", "")),
        ({"model_name": "nope"}, Named()),
    ],
)
async def test_an_infer_call_refused_over_grpc_counts_for_the_model_in_its_message(
    asked: dict[str, Any], counted: Named
) -> None:
    observed = Answers()
    engine = await two_models(observed)
    async with grpc_client(engine) as (client, _):
        await status_of(OipClient(client.channel).infer({}, **asked))
        record = await observed.answer()
    await engine.close(0.0)
    assert Named(record.model, record.version) == counted


@pytest.mark.parametrize("service", ["predictor", "inference"])
async def test_a_call_counts_for_the_version_that_answers_it_though_another_serves_by_then(
    service: str,
) -> None:
    async with grpc_serving() as served:
        if service == "predictor":
            call = served.client.predict()
        else:
            call = OipClient(served.client.channel).infer(make_request(2).inputs)
        asking = asyncio.ensure_future(call)
        run = await served.serving.gate.began()
        engine = served.serving.engine
        swapping = asyncio.create_task(engine.swap(Watched(version="2")))
        while engine.spec("fake").version == "1":  # noqa: ASYNC110  # a thread loads it
            await asyncio.sleep(0)
        run.finish()
        await asking
        await swapping
        record = await served.observed.answer()
        assert (record.model, record.version) == ("fake", "1")


SPLIT = (Part("1", "1", 1.0), Part("2", "2", 3.0))
KEY = next(key for key in map(str, range(100)) if pick(SPLIT, "fake", key).version == "1")


@contextlib.asynccontextmanager
async def split_between_two(observed: Answers) -> AsyncIterator[tuple[Engine, Gate]]:
    """Serve version 1, gated, for a fourth of the keys, and version 2, the default."""
    backend = Watched(version="1")
    backend.before_run = gate = Gate()
    engine = Engine(SchedulerOptions(inline_below_s=0.0), observed)
    await engine.load(backend)
    await engine.load(Watched(version="2"))
    engine.route("fake", Routes(split=SPLIT))
    engine.open()
    try:
        yield engine, gate
    finally:
        gate.open()
        await engine.close(1.0)


async def test_a_call_cancelled_under_a_split_counts_for_the_version_that_had_it() -> None:
    observed = Answers()
    async with split_between_two(observed) as (engine, gate):
        assert engine.spec("fake").version == "2"
        async with grpc_client(engine) as (client, _):
            call = client.predict(metadata=(("x-request-key", KEY),))
            asking = asyncio.ensure_future(call)
            await gate.began()
            asking.cancel()
            record = await observed.answer()
    assert (record.model, record.version, record.code) == ("fake", "1", Code.CANCELLED)


async def test_a_client_that_leaves_under_a_split_counts_for_the_version_that_had_it() -> None:
    observed = Answers()
    async with split_between_two(observed) as (engine, gate):
        transport = HttpTransport(HttpOptions(port=0))
        (url,) = await transport.start(engine)
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            headers = {"content-type": "application/x-protobuf", "x-request-key": KEY}
            body = as_protobuf(make_request(2))
            asking = asyncio.ensure_future(
                client.post("/v1/predict", content=body, headers=headers)
            )
            await gate.began()
            asking.cancel()
            record = await observed.answer()
        await transport.stop(1.0)
    assert (record.model, record.version, record.code) == ("fake", "1", Code.CANCELLED)
