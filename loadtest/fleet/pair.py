"""One load, measured and simulated: what stands beside what, and what is held to 10 %."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.lab.stats import median_ratio

MOST_OFF = 0.10
JUDGED = ("requests_per_s", "mean_ms", "p50_ms", "p90_ms")
SHOWN = (*JUDGED, "p99_ms")
# Each load is measured so often in a row, with the same arrivals.
TWICE = 2
# Of a machine that is followed run by run: a few slow spells decide on the tail.
_JUDGED_FOLLOWED = JUDGED[:3]


@dataclass(frozen=True, slots=True)
class Pair:
    """A point of the curve, and the figures of ``SHOWN`` as the simulation has them.

    ``runs`` has those of each run, where each was simulated as the machine was then. Runs of one
    load differ by more than a simulation of them: then each is held to its own.
    """

    point: Mapping[str, Any]
    simulated: Mapping[str, float]
    runs: Sequence[Mapping[str, float]] = ()

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
        return max(abs(self.off(name)) for name in self._judged)

    @property
    def worst_run(self) -> float:
        """How far off the worst judged figure of the worst run is; 0 where none was followed."""
        both = zip(self.runs, self._measured_runs, strict=False)
        return _apart([*both], self._judged)

    @property
    def apart(self) -> float:
        """How far off it is between what was measured, and measured again at once; 0 if it was not.

        Files from before that have each run once.
        """
        twice: dict[tuple[float, int], list[Mapping[str, float]]] = {}
        for run in self.point.get("runs", ()):
            twice.setdefault((run["rate"], run["seed"]), []).append(run["measured"])
        return _apart([(each[1], each[0]) for each in twice.values() if len(each) == TWICE],
                      self._judged)  # fmt: skip

    @property
    def _measured_runs(self) -> list[Mapping[str, float]]:
        return [run["measured"] for run in self.point.get("runs", ())]

    @property
    def _judged(self) -> tuple[str, ...]:
        return _JUDGED_FOLLOWED if self.point.get("runs") else JUDGED

    def off(self, name: str) -> float:
        """Return by which share the simulation is above what was measured; of runs, the median."""
        if self.runs:
            measured = [run[name] for run in self._measured_runs]
            return median_ratio([run[name] for run in self.runs], measured) - 1
        return self.simulated[name] / self.measured[name] - 1

    def line(self) -> dict[str, float | str]:
        """Return the line of the table."""
        line: dict[str, float | str] = {"load": self.load}
        for name in SHOWN:
            both = f"{self.measured[name]:.4g} / {self.simulated[name]:.4g}"
            line[name] = f"{both} ({self.off(name):+.1%})"
        means = [run["mean_ms"] for run in self._measured_runs]
        if means:
            line["mean_ms of the runs"] = f"{min(means):.3g} - {max(means):.3g}"
        if self.runs:
            line["worst run"] = f"{self.worst_run:.1%}"
        if self.apart:
            line["measured again"] = f"{self.apart:.1%}"
        return line


def _apart(
    pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], names: Sequence[str]
) -> float:
    """Return how far the worst of ``names`` in the worst of ``pairs`` is from its base."""
    return max(
        [abs(one[name] / base[name] - 1) for one, base in pairs for name in names], default=0
    )
