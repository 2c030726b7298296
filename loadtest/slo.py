"""Service level objectives: a percentile of the response time, and the rate that still keeps it."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.record import Outcome

_FORM = re.compile(r"p(\d+(?:\.\d+)?)=(\d+(?:\.\d+)?)(us|ms|s)")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
# The search doubles the rate at most this often before it believes in no limit.
_DOUBLINGS = 6
# Nor does it look below this part of the guess.
_LEAST = 100


@dataclass(frozen=True, slots=True)
class Slo:
    """``percent`` of the responses take ``limit_s`` at most; ``most_errors`` is a share."""

    percent: float
    limit_s: float
    most_errors: float = 0.001

    def __str__(self) -> str:
        return f"p{self.percent:g}={self.limit_s * 1e3:g}ms"

    def met(self, outcome: Outcome) -> bool:
        """Say whether ``outcome`` keeps it; nothing answered keeps nothing."""
        asked = outcome.answered + outcome.errors
        return (
            outcome.answered > 0
            and outcome.errors <= self.most_errors * asked
            and outcome.response.percentile(self.percent) <= self.limit_s
        )


def parse(text: str) -> Slo:
    """Read ``p99=10ms``. Raises ValueError."""
    found = _FORM.fullmatch(text)
    if not found or not 0 < float(found[1]) <= 100 or not float(found[2]):
        raise ValueError(
            f"expected a percentile and a time in us, ms or s, as p99=10ms; got {text!r}"
        )
    return Slo(float(found[1]), float(found[2]) * _UNITS[found[3]])


def search(keeps: Callable[[float], bool], guess: float, precision: float) -> float:
    """Return the highest rate that ``keeps``, to a share of ``precision``; 0 if none does.

    ``guess`` is where to begin; it grows while it is kept.
    """
    low, high = 0.0, guess
    for _ in range(_DOUBLINGS):
        if not keeps(high):
            break
        low, high = high, 2 * high
    else:
        return low
    while high - low > precision * high and high > guess / _LEAST:
        middle = (low + high) / 2
        if keeps(middle):
            low = middle
        else:
            high = middle
    return low
