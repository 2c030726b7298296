"""What is shown of each version of a model: its updates, and what it does as a shadow."""

from typing import get_args

from app.families import Families
from scheduler.observer import Shadowed, Updated, UpdateOutcome
from scheduler.types import ModelSpec

DIFFERENCES = tuple(10.0**power for power in range(-8, 3))
_VERSION = ("model", "version")


class UpdateSeries:
    """Deltas of embedding rows."""

    def __init__(self, families: Families) -> None:
        self._rows = families.counters("update_rows", "Embedding rows replaced", ("model",))
        self._deltas = families.counters(
            "update_deltas", "Deltas of embedding rows, and rollbacks", ("model", "outcome")
        )
        self._duration = families.histograms(
            "update_duration_seconds", "Applying one delta", ("model",)
        )
        self._sequence = families.gauges(
            "update_sequence", "Deltas in force since the load", _VERSION
        )

    def loaded(self, spec: ModelSpec) -> None:
        """Begin the series of a model."""
        for done in get_args(UpdateOutcome):
            self._deltas.by[spec.name, done] += 0
        self._sequence.by[spec.name, spec.version] = 0

    def serving(self, versions: set[tuple[str, str]]) -> None:
        """Forget the sequences of versions that are gone."""
        sequences = self._sequence.by
        self._sequence.by = {one: sequences[one] for one in sequences if one in versions}

    def updated(self, record: Updated) -> None:
        """Count and time a delta."""
        self._deltas.by[record.model, record.outcome] += 1
        self._sequence.by[record.model, record.version] = record.sequence
        if record.outcome in ("applied", "rolled_back"):
            self._rows.by[record.model,] += record.rows
            self._duration.by[record.model,].observe(record.seconds)


class ShadowSeries:
    """Copies of requests, and how far their scores are from those answered with."""

    def __init__(self, families: Families) -> None:
        self._copies = families.counters(
            "shadow_requests", "Copies for a shadow version, by outcome", (*_VERSION, "outcome")
        )
        self._largest = families.histograms(
            "shadow_max_difference", "Largest difference of a copy's scores", _VERSION, DIFFERENCES
        )
        self._mean = families.histograms(
            "shadow_mean_difference", "Mean difference of a copy's scores", _VERSION, DIFFERENCES
        )

    def shadowed(self, record: Shadowed) -> None:
        """Count a copy."""
        version = (record.model, record.version)
        self._copies.by[*version, record.outcome] += 1
        if record.outcome == "compared":
            self._largest.by[version].observe(record.max_difference)
            self._mean.by[version].observe(record.mean_difference)
