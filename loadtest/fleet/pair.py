"""One load, measured and simulated: what stands beside what, and what is held to 10 %."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_OFF = 0.10
JUDGED = ("requests_per_s", "mean_ms", "p50_ms", "p90_ms")
SHOWN = (*JUDGED, "p99_ms")
# Of a machine that is followed run by run: a few slow spells decide on the tail.
_JUDGED_FOLLOWED = JUDGED[:3]


@dataclass(frozen=True, slots=True)
class Pair:
    """A point of the curve, and the figures of ``SHOWN`` as the simulation has them."""

    point: Mapping[str, Any]
    simulated: Mapping[str, float]

    @property
    def measured(self) -> Mapping[str, float]:
        """The figures as measured: medians of the runs'."""
        figures: Mapping[str, float] = self.point["measured"]
        return figures

    @property
    def load(self) -> str:
        """What was asked: a rate, or requests in flight."""
        if not self.point["rate"]:
            return f"{self.point['in_flight']} in flight"
        share = f"{self.point['share']:.0%}, " if "share" in self.point else ""
        return f"{share}{self.point['rate']:.0f}/s"

    @property
    def worst(self) -> float:
        """How far off the worst judged figure is."""
        judged = _JUDGED_FOLLOWED if self.point.get("runs") else JUDGED
        return max(abs(self.off(name)) for name in judged)

    def off(self, name: str) -> float:
        """Return by which share the simulation is above what was measured."""
        return self.simulated[name] / self.measured[name] - 1

    def line(self) -> dict[str, float | str]:
        """Return the line of the table."""
        line: dict[str, float | str] = {"load": self.load}
        for name in SHOWN:
            both = f"{self.measured[name]:.4g} / {self.simulated[name]:.4g}"
            line[name] = f"{both} ({self.off(name):+.1%})"
        means = [run["measured"]["mean_ms"] for run in self.point.get("runs", ())]
        return line | (
            {"mean_ms of the runs": f"{min(means):.3g} - {max(means):.3g}"} if means else {}
        )
