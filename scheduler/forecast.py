"""How long batches take, learnt while they run: what admission and batch forming look ahead with.

One batch costs about ``overhead + rows * a + ids * b`` seconds. The three weights are least squares
over the latest batches, older ones counting less and less, kept at 0 or above (an active set: a
weight that comes out negative is left out) and, where the batches say nothing of a weight, small
(ridge). One batch far off the forecast counts as a little off; the second in a row is believed.
"""

import math
from collections.abc import Sequence

from scheduler.waiting import BatchSeconds, Limits, Load, no_forecast

MIN_BATCHES = 4
# After so long without a batch the past says little; and a forecast too gloomy to let anything
# run would otherwise never learn better.
STALE_S = 1.0
KEEP = 0.97  # of each batch's weight when the next one comes: about the latest 30 count
RIDGE = 1e-4
# The overhead's size among the features: low, so that a few small batches teach mostly rows.
OVERHEAD = 0.1
MAX_STRETCH = 4.0
FAR_OFF = 3.0  # times the usual error
SOLVE_EVERY = 8  # batches, after as many at first: solving takes 20 us


class Forecast:
    """Predict the seconds of one model's batches and waits."""

    def __init__(self, limits: Limits, lanes: int) -> None:
        self._limits = limits
        self._lanes = lanes
        self._scales = (OVERHEAD, 1 / limits.max_batch_rows, 1 / limits.max_batch_ids)
        self._weights = (0.0, 0.0, 0.0)
        self._products = [[0.0] * 3 for _ in range(3)]  # of features with features
        self._targets = [0.0] * 3  # of features with seconds
        self._batches = 0
        self._usual_error = 0.0  # as a share of the forecast
        self._was_far_off = False
        self._stretch = 1.0  # what waits turn out to be, by what was forecast
        self._latest_s = -math.inf

    def observe(self, rows: int, ids: int, seconds: float, now: float) -> None:
        """Learn that a batch of ``rows`` and ``ids`` took ``seconds``."""
        if self._batches:
            seconds = self._believed(self.batch_s(rows, ids), seconds)
        features = (OVERHEAD, rows * self._scales[1], ids * self._scales[2])
        for row, feature in enumerate(features):
            self._targets[row] = KEEP * self._targets[row] + feature * seconds
            for column, other in enumerate(features):
                product = KEEP * self._products[row][column] + feature * other
                self._products[row][column] = product
        self._batches += 1
        if self._batches <= SOLVE_EVERY or self._batches % SOLVE_EVERY == 0:
            weights = _least_squares(self._products, self._targets)
            overhead_s, row_s, id_s = map(float.__mul__, weights, self._scales)
            self._weights = (overhead_s, row_s, id_s)
        self._latest_s = now

    def known(self, now: float) -> bool:
        """Return whether there is a forecast."""
        return self._batches >= MIN_BATCHES and now - self._latest_s <= STALE_S

    def at(self, now: float) -> BatchSeconds:
        """Return what says how long a batch takes at most, usually: 0 s while nothing is known."""
        return self._cautious_s if self.known(now) else no_forecast

    def batch_s(self, rows: int, ids: int) -> float:
        """Return the seconds that one batch takes."""
        overhead_s, row_s, id_s = self._weights
        return overhead_s + rows * row_s + ids * id_s

    def all_s(self, load: Load, under_way_s: float = 0.0) -> float:
        """Return the seconds until ``load`` has been computed and answered, all lanes working.

        ``under_way_s`` is what the batches that run already still take together.
        """
        limits = self._limits
        batches = max(load.rows / limits.max_batch_rows, load.ids / limits.max_batch_ids)
        if limits.max_batch_requests:
            batches = max(batches, load.requests / limits.max_batch_requests)
        more_overhead_s = max(0, math.ceil(batches) - 1) * self._weights[0]
        work_s = under_way_s + self.batch_s(load.rows, load.ids) + more_overhead_s
        return self._stretch * work_s / self._lanes

    def came_true(self, forecast_s: float, seconds: float) -> None:
        """Learn that what ``all_s`` forecast took ``seconds``.

        Batches that deadlines keep small, hand-offs and a busy event loop stretch every wait; left
        out of the forecast they would let in what cannot be answered in time.
        """
        if forecast_s > 0:
            stretch = self._stretch * seconds / forecast_s
            self._stretch += 0.1 * (stretch - self._stretch)
            self._stretch = max(1.0, min(self._stretch, MAX_STRETCH))

    def _cautious_s(self, rows: int, ids: int) -> float:
        return self.batch_s(rows, ids) * (1 + 2 * self._usual_error)

    def _believed(self, forecast_s: float, seconds: float) -> float:
        """Return ``seconds``, or what is believed of them if they are far off for once."""
        error = seconds / forecast_s - 1 if forecast_s > 0 else 1.0
        bound = FAR_OFF * self._usual_error
        far_off = abs(error) > bound and self._batches >= MIN_BATCHES
        if far_off and not self._was_far_off:
            seconds = forecast_s * (1 + math.copysign(bound, error))
        self._was_far_off = far_off
        self._usual_error += 0.1 * (min(abs(error), 1.0) - self._usual_error)
        return seconds


def _least_squares(
    products: Sequence[Sequence[float]], targets: Sequence[float]
) -> tuple[float, float, float]:
    """Return the three weights, none negative, that fit best."""
    kept = [0, 1, 2]
    while kept:
        solved = _solve(products, targets, kept)
        if min(solved) >= 0:
            weights = dict(zip(kept, solved, strict=True))
            return (weights.get(0, 0.0), weights.get(1, 0.0), weights.get(2, 0.0))
        kept.remove(kept[solved.index(min(solved))])
    return (0.0, 0.0, 0.0)


def _solve(
    products: Sequence[Sequence[float]], targets: Sequence[float], kept: Sequence[int]
) -> list[float]:
    """Solve the normal equations of the ``kept`` features, by elimination, with a ridge."""
    ridge = RIDGE * sum(products[row][row] for row in kept)
    matrix = [
        [products[row][column] + (ridge if row == column else 0.0) for column in kept]
        + [targets[row]]
        for row in kept
    ]
    size = len(kept)
    for pivot in range(size):
        for row in range(pivot + 1, size):
            factor = matrix[row][pivot] / matrix[pivot][pivot]
            matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[pivot], strict=True)]
    solved = [0.0] * size
    for row in reversed(range(size)):
        known = sum(matrix[row][column] * solved[column] for column in range(row + 1, size))
        solved[row] = (matrix[row][size] - known) / matrix[row][row]
    return solved
