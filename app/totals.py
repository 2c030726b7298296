"""Read off the metrics how much each model has done so far."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.second import Second
from app.series import Counters, Histograms


@dataclass(frozen=True, slots=True)
class Totals:
    """The series that say so; ``requests`` and ``durations`` are by model first.

    ``waiting_rows`` returns the rows that wait now, of the models of which any do; ``settle``
    counts what is not counted yet.

    Reading costs the serving path nothing: it counts into them anyway.
    """

    requests: Counters
    durations: Histograms
    rows: Histograms
    batch_requests: Histograms
    waiting_rows: Callable[[], Mapping[str, int]]
    settle: Callable[[], None]

    def read(self) -> dict[str, Second]:
        """Return what every model has done since the start."""
        self.settle()
        requests, errors = Counter[str](), Counter[str]()
        for (model, _, code), count in self.requests.by.items():
            requests[model] += int(count)
            errors[model] += 0 if code == "ok" else int(count)
        durations: defaultdict[str, list[tuple[int, ...]]] = defaultdict(list)
        for (model, _), histogram in self.durations.by.items():
            durations[model].append(histogram.counts())
        return {
            model: Second(
                requests[model],
                errors[model],
                *self._batches(model),
                tuple(map(sum, zip(*durations[model], strict=True))),
            )
            for model in {*requests, *(model for (model,) in self.rows.by)}
        }

    def _batches(self, model: str) -> tuple[int, int, int]:
        """Return the batches, and the requests and rows in them."""
        rows = self.rows.by.get((model,))
        if rows is None:
            return 0, 0, 0
        return sum(rows.counts()), int(self.batch_requests.by[model,].sum()), int(rows.sum())
