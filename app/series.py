"""Time series for Prometheus whose updates cost a look-up and an addition.

prometheus_client's own metrics take 1 to 3 us an update, for locks that one event loop does not
need. Not thread-safe: update and scrape on the event loop.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

# The values of a series' labels, in the order of the labels' names.
Labels: TypeAlias = tuple[str, ...]


class Histogram:
    """Count values by size: each belongs to the first of ``bounds`` that it does not exceed."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count ``value``."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound, as Prometheus writes it, and how many values do not exceed it."""
        bounds = map(floatToGoString, (*self._bounds, float("inf")))
        return list(zip(bounds, accumulate(self._counts), strict=True))

    def counts(self) -> tuple[int, ...]:
        """Return how many values belong to each bound, and to none."""
        return tuple(self._counts)

    def sum(self) -> float:
        """Return the sum of all values."""
        return self._sum


class Histograms(Collector):
    """A histogram for each combination of labels, made when it is first asked for."""

    def __init__(self, name: str, text: str, labels: Labels, bounds: Sequence[float]) -> None:
        self.by: defaultdict[Labels, Histogram] = defaultdict(lambda: Histogram(bounds))
        self._name, self._text, self._labels = name, text, labels

    def collect(self) -> Iterator[Metric]:
        """Yield the family, for a scrape."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, histogram in self.by.items():
            family.add_metric(labels, histogram.buckets(), histogram.sum())
        yield family


class Counters(Collector):
    """A number that only grows for each combination of labels, 0 until it is added to."""

    def __init__(self, name: str, text: str, labels: Labels) -> None:
        self.by: defaultdict[Labels, float] = defaultdict(float)
        self._name, self._text, self._labels = name, text, labels

    def collect(self) -> Iterator[Metric]:
        """Yield the family, for a scrape."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self.by.items():
            family.add_metric(labels, value)
        yield family


class Gauges(Collector):
    """A number for each combination of labels."""

    def __init__(self, name: str, text: str, labels: Labels) -> None:
        self.by: dict[Labels, float] = {}
        self._name, self._text, self._labels = name, text, labels

    def collect(self) -> Iterator[Metric]:
        """Yield the family, for a scrape."""
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self.by.items():
            family.add_metric(labels, value)
        yield family
