"""Spans of requests over every transport, as a real collector gets them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from app.tracing.options import TracingOptions
from app.tracing.tracing import traced
from backends.fake import FakeBackend
from scheduler.observer import Answered, Computed, Observer
from scheduler.options import SchedulerOptions
from tests.fixtures.behind_front_ends import MakeFrontEnds
from tests.fixtures.collector import Collector, attributes, grpc_collector, http_collector
from tests.fixtures.gates import Gate
from tests.fixtures.oip_grpc import message_of
from tests.fixtures.requests import as_json, as_protobuf, random_request
from tests.fixtures.serving import Served, serving
from transports.http3.client import Http3Client

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
JSON = {"content-type": "application/json"}


@dataclass
class Watched:
    """A server whose spans go to ``collector``."""

    served: Served
    collector: Collector
    end: Callable[[], Awaitable[None]]


@asynccontextmanager
async def watched(
    collector: Collector,
    certificates: Path,
    front_ends: MakeFrontEnds,
    ratio: float = 1.0,
) -> AsyncIterator[Watched]:
    ends: list[Callable[[], Awaitable[None]]] = []

    tracing = TracingOptions(collector.url, "grpc", ratio, "scores")

    def watch(recorder: Observer) -> Observer:
        observer, end = traced(recorder, tracing)
        ends.append(end)
        return observer

    # On the loop itself a held run could never be let go.
    options = SchedulerOptions(inline_below_s=0.0)
    fake, far = FakeBackend(FakeBackend.Options()), front_ends(tracing=tracing)
    async with serving(fake, certificates, options, watch, far) as served:
        yield Watched(served, collector, ends[0])


@pytest.fixture
def collector() -> Iterator[Collector]:
    with grpc_collector() as found:
        yield found


async def ask_grpc(served: Served, name: str, headers: Mapping[str, str]) -> None:
    async with grpc.aio.insecure_channel(urlsplit(served.urls[name]).netloc) as channel:
        predict = channel.unary_unary("/predictor.Predictor/Predict")
        body = as_protobuf(random_request(served.backend.spec, 2, seed=1))
        await predict(body, metadata=tuple(headers.items()))


async def ask_stream(served: Served, name: str, headers: Mapping[str, str]) -> None:
    spec = served.backend.spec
    message = message_of(random_request(spec, 2, seed=1).inputs, model_name=spec.name)
    async with grpc.aio.insecure_channel(urlsplit(served.urls[name]).netloc) as channel:
        infer = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        stream = infer(metadata=tuple(headers.items()))
        await stream.write(message.SerializeToString())
        await stream.read()
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


async def ask_http(served: Served, headers: Mapping[str, str], path: str = "/v1/predict") -> None:
    body = as_json(random_request(served.backend.spec, 2, seed=1), served.backend.spec)
    async with httpx.AsyncClient(base_url=served.urls["http"], timeout=60) as client:
        await client.post(path, content=body, headers={**JSON, **headers})


async def ask_http3(served: Served, headers: Mapping[str, str]) -> None:
    body = as_json(random_request(served.backend.spec, 2, seed=1), served.backend.spec)
    port = urlsplit(served.urls["http3"]).port or 0
    async with Http3Client.connect("localhost", port, served.ca) as client:
        await client.post("/v1/predict", body, {**JSON, **headers})


RPC = {"rpc.system.name": "grpc", "rpc.response.status_code": "OK"}
HTTP = {"http.request.method": "POST", "http.route": "/v1/predict", "url.path": "/v1/predict",
        "http.response.status_code": 200}  # fmt: skip
WIRES: dict[str, tuple[Callable[[Served, Mapping[str, str]], Awaitable[None]], str, Any]] = {
    "grpc": (
        lambda served, headers: ask_grpc(served, "grpc", headers),
        "predictor.Predictor/Predict",
        {**RPC, "rpc.method": "predictor.Predictor/Predict"},
    ),
    "grpc-grpcio": (
        lambda served, headers: ask_grpc(served, "grpc-grpcio", headers),
        "predictor.Predictor/Predict",
        {**RPC, "rpc.method": "predictor.Predictor/Predict"},
    ),
    "stream": (
        lambda served, headers: ask_stream(served, "grpc", headers),
        "inference.GRPCInferenceService/ModelStreamInfer",
        {**RPC, "rpc.method": "inference.GRPCInferenceService/ModelStreamInfer"},
    ),
    "http": (
        ask_http,
        "POST /v1/predict",
        {**HTTP, "network.protocol.version": "1.1", "network.transport": "tcp"},
    ),
    "http3": (
        ask_http3,
        "POST /v1/predict",
        {**HTTP, "network.protocol.version": "3", "network.transport": "quic"},
    ),
}


async def test_a_request_goes_from_its_sender_to_the_computing_in_one_trace_over_every_wire(
    collector: Collector, certificates: Path, front_ends: MakeFrontEnds
) -> None:
    async with watched(collector, certificates, front_ends) as running:
        for ask, _, _ in WIRES.values():
            await ask(running.served, {"traceparent": SAMPLED, "tracestate": "shop=7"})
        await running.end()
    assert collector.services == {"scores"}
    requests = [span for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    requests.sort(key=lambda span: span.start_time_unix_nano)
    for request, (_, name, said) in zip(requests, WIRES.values(), strict=True):
        assert (request.name, request.trace_state) == (name, "shop=7")
        assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
        assert said.items() <= attributes(request).items()
        ours = {"narsil.model": "fake", "narsil.version": "1", "narsil.rows": 2,
                "narsil.batch_rows": 2, "narsil.code": "ok"}  # fmt: skip
        assert ours.items() <= attributes(request).items()
        check_inside(collector, request)


def check_inside(collector: Collector, request: Span) -> None:
    """Check the spans of a request that had a batch to itself."""
    queue, batch = children(collector, request)
    gather, compute = children(collector, batch)
    assert [each.name for each in (queue, batch, gather, compute)] == [
        "queue", "batch", "gather", "compute",
    ]  # fmt: skip
    assert [link.span_id for link in batch.links] == [request.span_id]
    assert [link.span_id for link in queue.links] == [batch.span_id]
    assert attributes(batch)["narsil.batch_requests"] == 1
    times = (queue.end_time_unix_nano, gather.end_time_unix_nano, compute.end_time_unix_nano)
    assert times == tuple(sorted(times))
    assert request.start_time_unix_nano <= queue.start_time_unix_nano
    assert compute.end_time_unix_nano <= request.end_time_unix_nano


def _waiting(served: Served, rows: int) -> bool:
    return served.recorder.queued_rows == rows


def children(collector: Collector, parent: Span) -> list[Span]:
    found = [span for span in collector.spans if span.parent_span_id == parent.span_id]
    return sorted(found, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))


async def test_a_batch_is_linked_to_every_traced_request_in_it(
    collector: Collector, certificates: Path, front_ends: MakeFrontEnds
) -> None:
    async with watched(collector, certificates, front_ends) as running, AsyncExitStack() as undo:
        served = running.served
        assert isinstance(served.backend, FakeBackend)
        served.backend.before_run = gate = Gate()
        undo.callback(gate.open)
        tasks = [asyncio.create_task(ask_http(served, {}))]
        await gate.began()
        for number in range(1, 4):  # these wait while the first is computed
            sampled = f"00-{number:032x}-{number:016x}-{'00' if number == 3 else '01'}"
            tasks.append(asyncio.create_task(ask_http(served, {"traceparent": sampled})))
            await served.recorder.until(partial(_waiting, served, 2 * number))
        gate.open()
        await asyncio.gather(*tasks)
        await running.end()
    _, batch = collector.named("batch")
    assert attributes(batch)["narsil.batch_requests"] == 3
    assert [int(link.trace_id.hex(), 16) for link in batch.links] == [1, 2]
    assert int(batch.trace_id.hex(), 16) == 1
    queues = collector.named("queue")[1:]
    assert sorted(int(span.trace_id.hex(), 16) for span in queues) == [1, 2]
    assert {link.span_id for span in queues for link in span.links} == {batch.span_id}


async def test_of_requests_without_a_trace_a_share_is_traced_and_others_as_their_sender_says(
    collector: Collector, certificates: Path, front_ends: MakeFrontEnds
) -> None:
    async with watched(collector, certificates, front_ends, ratio=0.0) as running:
        for headers in ({}, {"traceparent": UNSAMPLED}, {"traceparent": "nonsense"}):
            await ask_http(running.served, headers)
        await ask_http(running.served, {"traceparent": SAMPLED})
        await running.end()
    assert [span.trace_id.hex() for span in collector.named("POST /v1/predict")] == [TRACE]
    assert len(collector.named("batch")) == 1


async def test_an_errors_span_says_what_it_was_and_who_is_to_blame(
    collector: Collector, certificates: Path, front_ends: MakeFrontEnds
) -> None:
    async with watched(collector, certificates, front_ends) as running:
        served = running.served
        assert isinstance(served.backend, FakeBackend)
        await ask_http(served, {}, "/v1/models/nobody/versions/7/predict")

        def fail(_: Any) -> None:
            raise ArithmeticError("a bug")

        served.backend.before_run = fail
        await ask_http(served, {}, "/v1/models/fake/predict")
        await running.end()
    name = "POST /v1/models/{model}/versions/{version}/predict"
    (unknown,) = collector.named(name)
    assert attributes(unknown)["http.response.status_code"] == 404
    assert attributes(unknown)["narsil.code"] == "model_not_found"
    assert unknown.status.code == Status.STATUS_CODE_UNSET
    (broken,) = collector.named("POST /v1/models/{model}/predict")
    assert attributes(broken)["error.type"] == "internal"
    assert broken.status.code == Status.STATUS_CODE_ERROR


async def test_what_is_reported_names_the_trace_that_was_begun_for_it(
    collector: Collector, certificates: Path, front_ends: MakeFrontEnds
) -> None:
    async with watched(collector, certificates, front_ends) as running:
        await ask_http(running.served, {})
        await running.end()
        await running.served.settled()
        (record,) = running.served.recorder.answers
    (request,) = collector.named("POST /v1/predict")
    assert record.trace is not None
    assert (record.trace_id, record.trace.span_id) == (
        request.trace_id.hex(),
        request.span_id.hex(),
    )


async def test_spans_leave_by_http_too() -> None:
    with http_collector() as collector:
        observer, end = traced(Observer(), TracingOptions(collector.url, "http"))
        trace = observer.traced("", "", 0.0)
        observer.computed(Computed("m", 1, 1, 0, 0.1, 0.2, (0.1,), started_s=1.0, traces=(trace,)))
        observer.answered(Answered("http", "m", 1, None, 1.3, trace=trace, operation="POST /x"))
        await end()
    assert [span.name for span in collector.named("batch", "POST /x")] == ["POST /x", "batch"]
    lengths = {
        span.name: span.end_time_unix_nano - span.start_time_unix_nano for span in collector.spans
    }
    expected = {"POST /x": 1.3, "queue": 0.1, "batch": 0.3, "gather": 0.1, "compute": 0.2}
    assert lengths == pytest.approx({name: s * 1e9 for name, s in expected.items()}, abs=1000)


async def test_a_batch_gathered_ahead_is_computed_from_its_start(collector: Collector) -> None:
    observer, end = traced(Observer(), TracingOptions(collector.url))
    trace = observer.traced(SAMPLED, "", 0.0)
    record = Computed("m", 1, 1, 0, 0.25, 0.5, (2.0,), started_s=3.0, ahead=True, traces=(trace,))
    observer.computed(record)
    await end()
    queue, batch, gather, compute = collector.named("queue", "batch", "gather", "compute")
    assert queue.end_time_unix_nano == gather.end_time_unix_nano == compute.start_time_unix_nano
    assert batch.start_time_unix_nano == gather.start_time_unix_nano


async def test_a_collector_that_is_gone_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.tracing.tracing.FLUSH_S", 0.05)
    monkeypatch.setattr("app.tracing.export._EXPORT_TIMEOUT_S", 1)
    observer, end = traced(Observer(), TracingOptions("http://127.0.0.1:1"))
    trace = observer.traced("", "", 0.0)
    observer.answered(Answered("http", "m", 1, None, 1.0, trace=trace, operation="POST /x"))
    await end()
    # It may still try, and draws from ``random``, which no property test may see beside itself.
    for trying in threading.enumerate():
        if trying.name == "tracing-end":
            await asyncio.to_thread(trying.join)
