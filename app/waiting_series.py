"""What waits and what runs, by version; shown by model."""

from collections import Counter, defaultdict
from collections.abc import Container

from app.families import Families


class WaitingSeries:
    """Gauges that add up the versions of each model; ``by`` has the rows, requests and batches."""

    def __init__(self, families: Families) -> None:
        model = ("model",)
        self.by: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._gauges = (
            families.gauges("queue_depth_rows", "Rows waiting", model),
            families.gauges("queue_depth_requests", "Requests waiting", model),
            families.gauges("inflight_batches", "Batches with the lanes", model),
        )

    def loaded(self, model: str, version: str) -> None:
        """Begin with nothing that waits."""
        self.by.setdefault((model, version), (0, 0, 0))

    def serving(self, versions: Container[tuple[str, str]]) -> None:
        """Forget every other version that has nothing to do any more."""
        self.by = {key: one for key, one in self.by.items() if key in versions or any(one)}

    def requests(self) -> dict[tuple[str, str], int]:
        """Return how many requests wait, by model and version."""
        return {version: requests for version, (_, requests, _) in self.by.items()}

    def rows(self) -> dict[str, int]:
        """Return the rows that wait, of each model of which any do."""
        waiting = Counter[str]()
        for (model, _), (rows, _, _) in self.by.items():
            waiting[model] += rows
        return {model: rows for model, rows in waiting.items() if rows}

    def settle(self) -> None:
        """Bring the gauges up to date."""
        for number, gauges in enumerate(self._gauges):
            sums: defaultdict[str, float] = defaultdict(float)
            for (model, _), figures in self.by.items():
                sums[model] += figures[number]
            gauges.by = {(model,): amount for model, amount in sums.items()}
