"""What one second, or several, brought a model: counts that add up."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest


@dataclass(frozen=True, slots=True)
class Second:
    """Count requests, those that failed among them, and the batches that were computed.

    ``durations`` counts the requests by what they took: one count for each of some bounds, and one
    for what exceeds them. ``batch_requests`` and ``rows`` are those of all ``batches`` together.
    """

    requests: int = 0
    errors: int = 0
    batches: int = 0
    batch_requests: int = 0
    rows: int = 0
    durations: tuple[int, ...] = ()

    def __add__(self, other: "Second") -> "Second":
        return _combined(self, other, 1)

    def __sub__(self, other: "Second") -> "Second":
        return _combined(self, other, -1)

    def __bool__(self) -> bool:
        """Whether anything happened."""
        return bool(self.requests or self.batches)


def percentile(durations: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """Return what ``share`` of the durations do not exceed, None if there are none.

    Within a bucket they are taken to lie evenly, as Prometheus does; beyond the last bound
    nothing is known, and the answer is that bound.
    """
    wanted = share * sum(durations)
    lower, before = 0.0, 0
    for bound, upto in zip(bounds, accumulate(durations), strict=False):
        if upto >= wanted and upto > before:
            return lower + (bound - lower) * (wanted - before) / (upto - before)
        lower, before = bound, upto
    return bounds[-1] if wanted else None


def _combined(one: Second, other: Second, sign: int) -> Second:
    return Second(
        one.requests + sign * other.requests,
        one.errors + sign * other.errors,
        one.batches + sign * other.batches,
        one.batch_requests + sign * other.batch_requests,
        one.rows + sign * other.rows,
        tuple(
            left + sign * right
            for left, right in zip_longest(one.durations, other.durations, fillvalue=0)
        ),
    )
