"""The names that dashboards made for Triton ask for."""

from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics

from app.triton_names import MetricsOptions
from app.watching import Watching, WatchOptions
from scheduler.errors import Code
from scheduler.observer import Answered, Computed
from scheduler.types import ModelSpec
from transports.statistics import Statistics


def watched(*, triton_names: bool) -> Watching:
    watching = Watching(WatchOptions(metrics=MetricsOptions(triton_names=triton_names)))
    spec = ModelSpec("a", "3", (), (), max_batch_rows=8)
    statistics: Statistics = watching.prometheus
    statistics.loaded(spec, 1)
    watching.prometheus.serving([spec])
    for code in (None, None, Code.INTERNAL):
        statistics.answered(Answered("grpc", "a", 2, code, 0.5, version="3"))
    statistics.computed(Computed("a", 6, 9, 0, 0.25, 0.5, (0.125, 0.125, 0.25), version="3"))
    statistics.queued(spec, 4, 2, 1)
    return watching


def test_they_count_by_model_and_version_in_microseconds() -> None:
    body, _ = watched(triton_names=True).prometheus.exposition("text/plain")
    # Not by the client's parser, which has every counter end in _total.
    lines = [line for line in body.decode().splitlines() if line.startswith("nv_")]
    series = {name: float(value) for name, value in (line.split(" ") for line in lines)}
    found = {name.removesuffix('{model="a",version="3"}'): value for name, value in series.items()}
    assert found == {
        "nv_inference_request_success": 2,
        "nv_inference_request_failure": 1,
        "nv_inference_count": 6,
        "nv_inference_exec_count": 1,
        "nv_inference_request_duration_us": 1_500_000,
        "nv_inference_queue_duration_us": 500_000,
        "nv_inference_compute_input_duration_us": 750_000,
        "nv_inference_compute_infer_duration_us": 1_500_000,
        "nv_inference_compute_output_duration_us": 0,
        "nv_inference_pending_request_count": 2,
    }


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
def test_they_are_not_there_unless_asked_for(accept: str) -> None:
    body, _ = watched(triton_names=False).prometheus.exposition(accept)
    assert b"nv_inference" not in body


def test_openmetrics_takes_them_for_what_it_does_not_know() -> None:
    body, kind = watched(triton_names=True).prometheus.exposition("application/openmetrics-text")
    assert kind.startswith("application/openmetrics-text")
    parse: Any = openmetrics.text_string_to_metric_families
    kinds = {family.name: family.type for family in parse(body.decode())}
    assert kinds["nv_inference_count"] == "unknown"
    assert kinds["nv_inference_pending_request_count"] == "gauge"
