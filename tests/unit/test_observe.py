"""The metrics an operator reads."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.observe import PrometheusObserver
from backends.fake import FakeBackend
from scheduler.engine import Engine
from scheduler.errors import Code
from scheduler.observer import Answered
from scheduler.options import SchedulerOptions
from tests.fixtures.requests import random_request


def samples(observer: PrometheusObserver) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample as the text format gives it, by name and sorted labels."""
    body, content_type = observer.exposition("text/plain")
    assert content_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def answered(code: Code | None, model: str = "fake") -> Answered:
    return Answered("http", model, 2, code, 0.001, "id", "detail")


async def test_batches_rows_and_waits_are_counted_as_they_ran() -> None:
    observer = PrometheusObserver()
    backend = FakeBackend(FakeBackend.Options())
    engine = Engine(SchedulerOptions(), observer)
    await engine.load(backend)
    engine.open()
    observer.serving(engine.specs())
    requests = [random_request(backend.spec, rows, seed=rows) for rows in (1, 2, 5)]
    await asyncio.gather(*(engine.infer(request) for request in requests))
    await engine.close(1.0)
    found = samples(observer)
    model = (("model", "fake"),)
    assert found["narsil_batch_rows_sum", model] == 8
    assert found["narsil_batch_requests_sum", model] == 3
    assert found["narsil_queue_duration_seconds_count", model] == 3
    assert found["narsil_compute_duration_seconds_count", model] == len(backend.batches)
    assert found["narsil_queue_depth_rows", model] == 0
    assert found["narsil_model_info", (("model", "fake"), ("version", "1"))] == 1


async def test_answers_are_counted_by_code_and_unknown_models_make_no_series() -> None:
    observer = PrometheusObserver()
    engine = Engine(SchedulerOptions(), observer)
    await engine.load(FakeBackend(FakeBackend.Options()))
    observer.serving(engine.specs())
    for record in (answered(None), answered(None), answered(Code.OVERLOADED)):
        observer.answered(record)
    for name in ("x", "y", "z"):
        observer.answered(answered(Code.MODEL_NOT_FOUND, model=name))
    await engine.close(1.0)
    counts = {
        labels: value
        for (name, labels), value in samples(observer).items()
        if name == "narsil_requests_total"
    }
    assert counts == {
        (("code", "ok"), ("model", "fake"), ("transport", "http")): 2,
        (("code", "overloaded"), ("model", "fake"), ("transport", "http")): 1,
        (("code", "model_not_found"), ("model", "unknown"), ("transport", "http")): 3,
    }


def test_an_internal_error_is_logged_with_its_request_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    PrometheusObserver().answered(answered(Code.INTERNAL))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "request id: internal: detail" in caplog.text


async def test_the_loops_lag_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.observe.LAG_PERIOD_S", 0.0)
    observer = PrometheusObserver()
    watching = asyncio.create_task(observer.watch_loop())
    await asyncio.sleep(0.001)
    watching.cancel()
    assert samples(observer)["narsil_event_loop_lag_seconds_count", ()] > 0


def test_a_client_cannot_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    record = Answered("http", "fake", 2, Code.INTERNAL, 0.001, "id", "x\nERROR forged" * 100)
    PrometheusObserver().answered(record)
    assert len(caplog.text.splitlines()) == 1
    assert len(caplog.text) < 1000


def test_an_accept_header_that_makes_no_sense_gets_plain_text() -> None:
    body, content_type = PrometheusObserver().exposition("application/openmetrics-text;version=z")
    assert content_type.startswith("text/plain")
    assert b"narsil_batch_rows" in body
