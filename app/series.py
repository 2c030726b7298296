"""Time series for Prometheus: an update costs a look-up and an addition, a scrape little more.

prometheus_client's own metrics take 1 to 3 us an update, for locks that one event loop does not
need, and 10 ms a scrape of three models, for which everybody would wait. Not thread-safe: update
and scrape on the event loop.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from operator import add
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from prometheus_client.utils import floatToGoString

# The values of a series' labels, in the order of the labels' names.
Labels: TypeAlias = tuple[str, ...]


class Family(Protocol):
    """Series of one name."""

    def lines(self, openmetrics: bool) -> Iterator[str]:
        """Yield the exposition's lines, in Prometheus' text format or in OpenMetrics."""


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

    def observe_all(self, values: ArrayLike) -> None:
        """Count each of ``values``."""
        values = np.asarray(values, float)
        counts = np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._counts))
        self._counts = [*map(add, self._counts, counts.tolist())]
        self._sum += float(values.sum())

    def cumulated(self) -> Iterator[int]:
        """Yield for each bound, and at last for infinity, how many values do not exceed it."""
        return accumulate(self._counts)

    def counts(self) -> tuple[int, ...]:
        """Return how many values belong to each bound, and to none."""
        return tuple(self._counts)

    def sum(self) -> float:
        """Return the sum of all values."""
        return self._sum


class Histograms:
    """A histogram for each combination of labels, made when it is first asked for."""

    def __init__(self, name: str, text: str, labels: Labels, bounds: Sequence[float]) -> None:
        self.by: defaultdict[Labels, Histogram] = defaultdict(lambda: Histogram(bounds))
        self._name, self._text, self._labels = name, text, labels
        write: Callable[[float], str] = floatToGoString  # as both formats have it
        self._bounds = [write(bound) for bound in (*bounds, float("inf"))]
        self._starts: dict[Labels, list[str]] = {}  # the lines without their values

    def lines(self, openmetrics: bool) -> Iterator[str]:
        """Yield the family's lines."""
        del openmetrics  # both formats have them alike
        yield from _head(self._name, self._text, "histogram")
        for labels, histogram in self.by.items():
            *buckets, count, total = self._starts.get(labels) or self._make_starts(labels)
            number = 0
            for start, number in zip(buckets, histogram.cumulated(), strict=True):
                yield f"{start}{number}.0"
            yield f"{count}{number}.0"
            yield f"{total}{histogram.sum()!r}"

    def _make_starts(self, labels: Labels) -> list[str]:
        pairs = _pairs(self._labels, labels)
        starts = [
            f"{self._name}_bucket{_braces([*pairs, f'le={_quoted(bound)}'])} "
            for bound in self._bounds
        ]
        starts += [f"{self._name}_{each}{_braces(pairs)} " for each in ("count", "sum")]
        self._starts[labels] = starts
        return starts


class Counters:
    """A number that only grows for each combination of labels, 0 until it is added to."""

    def __init__(self, name: str, text: str, labels: Labels) -> None:
        self.by: defaultdict[Labels, float] = defaultdict(float)
        self._name, self._text, self._labels = name, text, labels

    def lines(self, openmetrics: bool) -> Iterator[str]:
        """Yield the family's lines."""
        name = f"{self._name}_total"
        yield from _head(self._name if openmetrics else name, self._text, "counter")
        yield from samples(name, self._labels, self.by)


class Gauges:
    """A number for each combination of labels."""

    def __init__(self, name: str, text: str, labels: Labels) -> None:
        self.by: dict[Labels, float] = {}
        self._name, self._text, self._labels = name, text, labels

    def lines(self, openmetrics: bool) -> Iterator[str]:
        """Yield the family's lines."""
        del openmetrics  # both formats have them alike
        yield from _head(self._name, self._text, "gauge")
        yield from samples(self._name, self._labels, self.by)


class Foreign:
    """Counts under another project's names, which do not end as OpenMetrics has counters end."""

    def __init__(self, name: str, text: str, labels: Labels, by: dict[Labels, float]) -> None:
        self.by = by
        self._name, self._text, self._labels = name, text, labels

    def lines(self, openmetrics: bool) -> Iterator[str]:
        """Yield the family's lines."""
        yield from _head(self._name, self._text, "unknown" if openmetrics else "counter")
        yield from samples(self._name, self._labels, self.by)


def samples(name: str, labels: Labels, by: dict[Labels, float]) -> Iterator[str]:
    """Yield a line for each value."""
    for values, value in by.items():
        yield f"{name}{_braces(_pairs(labels, values))} {float(value)!r}"


def _head(name: str, text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _pairs(names: Labels, values: Labels) -> list[str]:
    return [f"{name}={_quoted(value)}" for name, value in zip(names, values, strict=True)]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'"{escaped}"'


def _braces(pairs: Sequence[str]) -> str:
    return f"{{{','.join(sorted(pairs))}}}" if pairs else ""
