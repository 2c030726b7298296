"""GPU series: of the devices that models are on, and nothing where there is none."""

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from app.gpu import GpuSeries
from app.observe import PrometheusObserver
from backends.fake import FakeBackend, FakeOptions


@dataclass
class Reading:
    used: int = 3 << 30
    total: int = 80 << 30
    gpu: int = 25


class Library:
    """As much of NVIDIA's library as is asked."""

    NVMLError = type("NVMLError", (Exception,), {})

    def __init__(self, known: str) -> None:
        self.known, self.asked = known, 0

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.asked += 1
        if uuid != self.known:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Reading:  # noqa: N802
        return Reading()

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Reading:  # noqa: N802
        return Reading()


def values(series: GpuSeries) -> dict[str, float]:
    return {
        f"{sample.name}{sample.labels}": sample.value
        for family in series.collect()
        for sample in family.samples
    }


def test_memory_and_utilisation_of_each_device_that_a_model_is_on() -> None:
    series = GpuSeries(lambda: Library("GPU-1"))
    assert values(series) == {}
    series.watch(["GPU-1", "GPU-1"])
    assert values(series) == {
        "narsil_gpu_memory_used_bytes{'gpu': 'GPU-1'}": 3 << 30,
        "narsil_gpu_memory_total_bytes{'gpu': 'GPU-1'}": 80 << 30,
        "narsil_gpu_utilization_ratio{'gpu': 'GPU-1'}": 0.25,
    }
    series.watch([])
    assert values(series) == {}


def _none() -> Any:
    raise ImportError("No module named 'pynvml'")


@pytest.mark.parametrize(
    ("start", "why"),
    [(_none, "extra 'cuda' has, reads them"), (lambda: Library("GPU-2"), "Not Found")],
)
def test_what_cannot_be_read_is_told_once_and_breaks_no_scrape(
    start: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    series = GpuSeries(start)
    series.watch(["GPU-1"])
    with caplog.at_level(logging.WARNING):
        assert values(series) == {}
        assert values(series) == {}
    assert [record.message for record in caplog.records if why in record.message]
    assert len(caplog.records) == 1


def test_without_a_gpu_there_are_no_such_series() -> None:
    backend, observer = FakeBackend(FakeOptions()), PrometheusObserver()
    backend.load()
    observer.serving((backend.spec,))
    assert b"narsil_gpu" not in observer.exposition("")[0]
