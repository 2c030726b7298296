"""The metrics an operator reads."""

import asyncio
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from app.observe import PrometheusObserver
from backends.fake import FakeBackend
from scheduler.control import Refused
from scheduler.engine import Engine
from scheduler.errors import Code, Missed
from scheduler.observer import Answered, Computed, Shadowed, Updated
from scheduler.options import SchedulerOptions
from scheduler.types import ModelSpec
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


def spec(name: str, version: str) -> ModelSpec:
    return ModelSpec(name, version, (), (), max_batch_rows=1)


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
    ids = sum(request.inputs["id_list_features.values"].size for request in requests)
    assert found["narsil_batch_ids_sum", model] == ids
    assert found["narsil_gather_duration_seconds_count", model] == len(backend.batches)
    assert found["narsil_queue_depth_rows", model] == 0
    assert found["narsil_model_info", (("model", "fake"), ("version", "1"))] == 1


def test_a_batchs_times_are_those_of_its_lane_and_its_requests() -> None:
    observer = PrometheusObserver()
    for lane, seconds in ((0, 0.5), (1, 0.25), (0, 0.25)):
        observer.computed(Computed("a", 3, 10, lane, seconds, seconds, (0.25, 0.5)))
    found = samples(observer)
    assert found["narsil_lane_busy_seconds_total", (("lane", "0"), ("model", "a"))] == 1.5
    assert found["narsil_lane_busy_seconds_total", (("lane", "1"), ("model", "a"))] == 0.5
    model = (("model", "a"),)
    assert found["narsil_gather_duration_seconds_sum", model] == 1.0
    assert found["narsil_compute_duration_seconds_sum", model] == 1.0
    assert found["narsil_queue_duration_seconds_sum", model] == 2.25
    assert found["narsil_batch_requests_sum", model] == 6
    assert found["narsil_batch_ids_count", model] == 3


def test_a_value_counts_for_every_bound_that_it_does_not_exceed() -> None:
    observer = PrometheusObserver()
    for rows in (1, 2, 3, 10**9):
        observer.computed(Computed("a", rows, 0, 0, 0.0, 0.0, ()))
    found = samples(observer)
    counts = {
        bound: found["narsil_batch_rows_bucket", (("le", bound), ("model", "a"))]
        for bound in ("1.0", "2.0", "4.0", "16384.0", "+Inf")
    }
    assert counts == {"1.0": 1, "2.0": 2, "4.0": 3, "16384.0": 3, "+Inf": 4}
    assert found["narsil_batch_rows_count", (("model", "a"),)] == 4


def test_each_model_has_series_of_its_own_and_drops_are_counted_by_reason() -> None:
    observer = PrometheusObserver()
    observer.queued(spec("a", "1"), 2, 1, 0)
    observer.queued(spec("a", "2"), 3, 2, 1)
    observer.queued(spec("b", "1"), 7, 1, 1)
    observer.dropped("a", "predicted_late")
    observer.dropped("a", "predicted_late")
    observer.dropped("b", "deadline")
    found = samples(observer)
    assert found["narsil_queue_depth_rows", (("model", "a"),)] == 5
    assert found["narsil_queue_depth_rows", (("model", "b"),)] == 7
    assert found["narsil_queue_depth_requests", (("model", "a"),)] == 3
    assert found["narsil_inflight_batches", (("model", "a"),)] == 1
    late = (("model", "a"), ("reason", "predicted_late"))
    assert found["narsil_dropped_total", late] == 2
    assert found["narsil_dropped_total", (("model", "b"), ("reason", "deadline"))] == 1


async def test_every_series_of_a_model_begins_at_0_when_it_is_loaded() -> None:
    observer = PrometheusObserver()
    engine = Engine(SchedulerOptions(), observer)
    await engine.load(FakeBackend(FakeBackend.Options(lanes=2)))
    found = samples(observer)
    await engine.close(0.0)
    dropped = {
        dict(labels)["reason"]: value
        for (name, labels), value in found.items()
        if name == "narsil_dropped_total"
    }
    reasons = ("deadline", "cancelled", "queue_full", "predicted_late", "draining")
    assert dropped == dict.fromkeys(reasons, 0)
    for lane in "01":
        busy = (("lane", lane), ("model", "fake"))
        assert found["narsil_lane_busy_seconds_total", busy] == 0
    for outcome in ("ok", "failed"):
        reloads = (("model", "fake"), ("outcome", outcome))
        assert found["narsil_model_reloads_total", reloads] == 0
    assert found["narsil_queue_depth_rows", (("model", "fake"),)] == 0


def test_a_model_that_is_loaded_again_keeps_its_counts() -> None:
    observer = PrometheusObserver()
    observer.loaded(spec("a", "1"), lanes=1)
    observer.dropped("a", "deadline")
    observer.reloaded("a", "ok")
    observer.loaded(spec("a", "2"), lanes=1)
    found = samples(observer)
    assert found["narsil_dropped_total", (("model", "a"), ("reason", "deadline"))] == 1
    assert found["narsil_model_reloads_total", (("model", "a"), ("outcome", "ok"))] == 1


def test_models_served_later_appear_and_replaced_ones_go() -> None:
    observer = PrometheusObserver()
    observer.serving((spec("a", "1"), spec("b", "1")))
    observer.serving((spec("a", "2"), spec("b", "1")))
    infos = [labels for name, labels in samples(observer) if name == "narsil_model_info"]
    assert infos == [(("model", "a"), ("version", "2")), (("model", "b"), ("version", "1"))]


def test_how_a_model_computes_is_shown_if_its_backend_has_a_choice() -> None:
    observer = PrometheusObserver()
    planned = replace(spec("a", "1"), properties={"plan": "lean"})
    observer.serving((planned, spec("b", "1")))
    plans = [labels for name, labels in samples(observer) if name == "narsil_model_plan"]
    assert plans == [(("model", "a"), ("plan", "lean"), ("version", "1"))]


def test_what_a_model_that_is_gone_still_answers_is_counted_as_its_own() -> None:
    observer = PrometheusObserver()
    observer.serving((spec("a", "1"),))
    observer.serving(())
    observer.answered(answered(None, model="a"))
    ok = (("code", "ok"), ("model", "a"), ("transport", "http"))
    assert samples(observer)["narsil_requests_total", ok] == 1


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


def test_an_error_is_logged_with_the_trace_that_it_is_a_part_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    traced = Answered("http", "fake", 2, Code.INTERNAL, 0.001, "id", "detail", trace_id="4bf92f35")
    PrometheusObserver().answered(traced)
    assert "http request id of trace 4bf92f35: internal: detail" in caplog.text


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


def test_the_openmetrics_format_is_one_that_its_own_parser_accepts() -> None:
    observer = PrometheusObserver()
    observer.computed(Computed("a", 3, 10, 0, 0.1, 0.2, (0.1,)))
    observer.answered(answered(None))
    body, content_type = observer.exposition("application/openmetrics-text;version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    parse: Any = openmetrics.text_string_to_metric_families
    families = {family.name for family in parse(body.decode())}
    assert {"narsil_batch_ids", "narsil_requests", "narsil_lane_busy_seconds"} <= families


def test_the_page_about_metrics_has_every_series_and_its_labels() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(narsil_\w+)` \| (.*?) \|", page, re.MULTILINE)
    documented = {
        name.removesuffix("_total"): set(re.findall(r"`(\w+)`", labels))
        for name, labels in rows
        # There where a GPU is (test_gpu_metrics.py) and where front ends are (test_frontends.py).
        if "_gpu_" not in name and "_frontend" not in name
    }
    observer = PrometheusObserver()
    observer.loaded(spec("a", "1"), lanes=1)
    observer.serving((replace(spec("a", "1"), properties={"plan": "lean", "labels": "b"}),))
    observer.repository(reachable=True, refused=[Refused("a", "2", "it is damaged")])
    observer.shadowed(Shadowed("a", "3", "compared", 0.1, 0.1))
    observer.answered(answered(None, model="a"))
    observer.keyed("ranker", "ok")
    observer.missed("a", (Missed("user", "zero", 2),))
    observer.computed(Computed("a", 1, 1, 0, 0.1, 0.1, (0.1,)))
    observer.updated(Updated("a", "1", "applied", 1, 0.1, 1))
    body, _ = observer.exposition("text/plain")
    exposed = {
        family.name: {label for sample in family.samples for label in sample.labels} - {"le"}
        for family in text_string_to_metric_families(body.decode())
        if family.name.startswith("narsil_")
    }
    assert documented == exposed


def test_a_scrape_takes_few_steps_for_each_line() -> None:
    observer = PrometheusObserver()
    for number in range(50):
        observer.loaded(replace(spec(f"m{number}", "1"), id_policies={"a": "zero"}), lanes=2)
        observer.computed(Computed(f"m{number}", 1, 1, 0, 0.1, 0.1, (0.1,)))
    observer.exposition("")  # the first makes what stays
    calls = 0

    def count(_: object, event: str, argument: object) -> None:
        nonlocal calls
        del argument
        calls += event == "call"

    sys.setprofile(count)
    try:
        body, _ = observer.exposition("")
    finally:
        sys.setprofile(None)
    assert calls < 4 * body.count(b"\n")  # prometheus_client's own: over 12


def test_names_that_need_it_are_escaped() -> None:
    observer = PrometheusObserver()
    name = 'a"b\\c\nd'
    observer.dropped(name, "deadline")
    observer.computed(Computed(name, 1, 1, 0, 0.1, 0.1, (0.1,)))
    found = samples(observer)
    assert found["narsil_dropped_total", (("model", name), ("reason", "deadline"))] == 1
    assert found["narsil_batch_rows_count", (("model", name),)] == 1
