"""What one second, or several, brought a model: counts that add up."""

from bisect import bisect_left
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


def percentiles(
    durations: Sequence[int], bounds: Sequence[float], shares: Sequence[float]
) -> list[float | None]:
    """Return what each of ``shares`` of the durations do not exceed, None if there are none.

    Within a bucket they are taken to lie evenly, as Prometheus does; beyond the last bound
    nothing is known, and the answer is that bound.
    """
    upto = list(accumulate(durations))
    if not upto or not upto[-1]:
        return [None] * len(shares)
    return [_percentile(upto, bounds, share * upto[-1]) for share in shares]


def _percentile(upto: Sequence[int], bounds: Sequence[float], wanted: float) -> float:
    at = bisect_left(upto, wanted)
    if at >= len(bounds):
        return bounds[-1]
    lower, before = (bounds[at - 1], upto[at - 1]) if at else (0.0, 0)
    return lower + (bounds[at] - lower) * (wanted - before) / (upto[at] - before)


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
