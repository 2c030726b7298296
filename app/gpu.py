"""What NVIDIA's library says of the GPUs that models are on; it is not loaded without one."""

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

_HINT = "nvidia-ml-py, which this project's extra 'cuda' has, reads them"


def _nvml() -> Any:
    """Return the library, started. Raises ImportError or OSError."""
    library: Any = importlib.import_module("pynvml")
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        raise OSError(str(error)) from error
    return library


class GpuSeries(Collector):
    """Memory and utilisation of each GPU that a model is on, read at every scrape."""

    def __init__(self, start: Callable[[], Any] = _nvml) -> None:
        self._start = start
        self._library: Any = None
        self._uuids: tuple[str, ...] = ()

    def watch(self, uuids: Iterable[str]) -> None:
        """Read those devices from now on, by the name that NVIDIA's tools know them by."""
        self._uuids = tuple(sorted(set(uuids)))

    def collect(self) -> Iterator[Metric]:
        """Yield the families, for a scrape; none where there is no GPU or no library."""
        if not self._uuids:
            return
        used = GaugeMetricFamily(
            "narsil_gpu_memory_used_bytes", "Memory in use, by all processes", labels=("gpu",)
        )
        total = GaugeMetricFamily(
            "narsil_gpu_memory_total_bytes", "Memory of the device", labels=("gpu",)
        )
        busy = GaugeMetricFamily(
            "narsil_gpu_utilization_ratio", "Share of time in which a kernel ran", labels=("gpu",)
        )
        for uuid, memory, rates in self._read():
            used.add_metric((uuid,), memory.used)
            total.add_metric((uuid,), memory.total)
            busy.add_metric((uuid,), rates.gpu / 100)
        yield from (used, total, busy)

    def _read(self) -> list[tuple[str, Any, Any]]:
        try:
            library = self._library = self._library or self._start()
        except ImportError as error:
            return self._give_up(f"{error}; {_HINT}")
        except OSError as error:
            return self._give_up(str(error))
        try:
            return [(uuid, *_ask(library, uuid)) for uuid in self._uuids]
        except library.NVMLError as error:
            return self._give_up(str(error))

    def _give_up(self, why: str) -> list[tuple[str, Any, Any]]:
        logger.warning("no GPU metrics: %s", why)
        self._uuids = ()
        return []


def _ask(library: Any, uuid: str) -> tuple[Any, Any]:
    handle = library.nvmlDeviceGetHandleByUUID(uuid)
    return library.nvmlDeviceGetMemoryInfo(handle), library.nvmlDeviceGetUtilizationRates(handle)
