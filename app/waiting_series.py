"""What waits and what runs, by version; shown by model."""

from collections import Counter, defaultdict
from collections.abc import Container

from app.families import Families
from scheduler.types import ModelSpec

NOTHING = (0, 0, 0)


class WaitingSeries:
    """Gauges that add up the versions of each model.

    ``load`` has the rows, requests and batches of ``spec``, the one that was told of last: most
    servers have one, and this is written several times a request.
    """

    def __init__(self, families: Families) -> None:
        model = ("model",)
        self.spec: ModelSpec | None = None
        self.load = NOTHING
        self._by: dict[tuple[str, str], tuple[int, int, int]] = {}
        self._gauges = (
            families.gauges("queue_depth_rows", "Rows waiting", model),
            families.gauges("queue_depth_requests", "Requests waiting", model),
            families.gauges("inflight_batches", "Batches with the lanes", model),
        )

    def turn(self, spec: ModelSpec) -> None:
        """Make ``spec`` the one whose load is written next."""
        self._note()
        self.spec, self.load = spec, self._by.get((spec.name, spec.version), NOTHING)

    def _note(self) -> None:
        if self.spec is not None:
            self._by[self.spec.name, self.spec.version] = self.load

    def loaded(self, model: str, version: str) -> None:
        """Begin with nothing that waits."""
        self._by.setdefault((model, version), NOTHING)

    def serving(self, versions: Container[tuple[str, str]]) -> None:
        """Forget every other version that has nothing to do any more."""
        self._note()
        self.spec = None
        self._by = {key: one for key, one in self._by.items() if key in versions or any(one)}

    def requests(self) -> dict[tuple[str, str], int]:
        """Return how many requests wait, by model and version."""
        self._note()
        return {version: requests for version, (_, requests, _) in self._by.items()}

    def rows(self) -> dict[str, int]:
        """Return the rows that wait, of each model of which any do."""
        self._note()
        waiting = Counter[str]()
        for (model, _), (rows, _, _) in self._by.items():
            waiting[model] += rows
        return {model: rows for model, rows in waiting.items() if rows}

    def settle(self) -> None:
        """Bring the gauges up to date."""
        self._note()
        for number, gauges in enumerate(self._gauges):
            sums: defaultdict[str, float] = defaultdict(float)
            for (model, _), figures in self._by.items():
                sums[model] += figures[number]
            gauges.by = {(model,): amount for model, amount in sums.items()}
