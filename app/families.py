"""The series of one exposition, in the order in which they are shown."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from app.series import Counters, Family, Gauges, Histograms, Labels

Series = TypeVar("Series", bound=Family)

# Sub-millisecond steps: a recommender answers in about one millisecond, and the common defaults
# begin at five.
SECONDS = (
    0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075,
    0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip


class Families:
    """Make series called ``narsil_...`` and keep them."""

    def __init__(self) -> None:
        self._all: list[Family] = []

    def __iter__(self) -> Iterator[Family]:
        """Yield them as they were made."""
        return iter(self._all)

    def histograms(
        self, name: str, text: str, labels: Labels, bounds: Sequence[float] = SECONDS
    ) -> Histograms:
        """Add histograms."""
        return self._kept(Histograms(f"narsil_{name}", text, labels, bounds))

    def counters(self, name: str, text: str, labels: Labels) -> Counters:
        """Add counters."""
        return self._kept(Counters(f"narsil_{name}", text, labels))

    def gauges(self, name: str, text: str, labels: Labels) -> Gauges:
        """Add gauges."""
        return self._kept(Gauges(f"narsil_{name}", text, labels))

    def _kept(self, series: Series) -> Series:
        self._all.append(series)
        return series
