"""How long batches take, learnt while they run: what admission and batch forming look ahead with.

One batch costs about ``overhead + rows * a + ids * b`` seconds. The three weights are least squares
over the latest batches, older ones counting less and less, kept at 0 or above (an active set: a
weight that comes out negative is left out) and, where the batches say nothing of a weight, small
(ridge). One batch far off the forecast counts as a little off; the second in a row is believed.
"""

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from scheduler.waiting import BatchSeconds, Limits, Load, no_forecast

MIN_BATCHES = 4
# After so long without a batch nothing is known until the next one, which the past must agree with,
# or it is forgotten: a forecast too gloomy to let anything run would otherwise never learn better.
STALE_S = 1.0
STALE_BATCHES = 5  # the same, in batches like the last: some take longer than a second
KEEP = 0.97  # of each batch's weight when the next one comes: about the latest 30 count
RECENT = 100
RIDGE = 1e-4
# The overhead's size among the features: low, so that a few small batches teach mostly rows.
OVERHEAD = 0.1
MAX_STRETCH = 4.0
FAR_OFF = 3.0  # times the usual error
# A batch is large enough at so many times what it costs however small it is: its overhead, or the
# way to a lane and back with caches full of weights, whichever is more (decision 49).
ENOUGH = 20.0
HAND_OFF_S = 2e-4
# After as many batches at first; and seconds computed in between: a fit takes 60 us.
FIT_EVERY = 16
FIT_EVERY_S = 0.005

Floats = npt.NDArray[np.float64]


class Forecast:
    """Predict the seconds of one model's batches and waits, with so many ``lanes``."""

    def __init__(self, limits: Limits, lanes: int) -> None:
        self._limits = limits
        self.lanes = lanes
        # As shares of a full batch, so that no unit decides how much the ridge holds it down.
        self._scales = np.array([OVERHEAD, 1 / limits.max_batch_rows, 1 / limits.max_batch_ids])
        self._weights = (0.0, 0.0, 0.0)
        self._recent: deque[tuple[float, int, int, float]] = deque(maxlen=RECENT)
        self._batches = 0
        self._usual_error = 0.0  # as a share of the forecast
        self._was_far_off = False
        self._stretch: dict[int, float] = {}  # by priority: what waits are, by what was forecast
        self._latest_s = -math.inf
        self._unfitted_s = 0.0  # that batches have taken since the last fit
        self._stale_s = STALE_S

    def observe(self, rows: int, ids: int, seconds: float, now: float) -> None:
        """Learn that a batch of ``rows`` and ``ids`` took ``seconds``."""
        if now - self._latest_s > self._stale_s and not self._holds(rows, ids, seconds):
            self._recent.clear()
            self._batches = 0
        if self._batches:
            seconds = self._believed(self.batch_s(rows, ids), seconds)
        self._recent.append((1.0, rows, ids, seconds))
        self._batches += 1
        self._unfitted_s += seconds
        often = self._batches % FIT_EVERY == 0 and self._unfitted_s >= FIT_EVERY_S
        if self._batches <= FIT_EVERY or often:
            self._fit()
            self._unfitted_s = 0.0
        self._latest_s = now
        self._stale_s = max(STALE_S, STALE_BATCHES * seconds)

    def known(self, now: float) -> bool:
        """Return whether there is a forecast."""
        return self._batches >= MIN_BATCHES and now - self._latest_s <= self._stale_s

    def at(self, now: float) -> BatchSeconds:
        """Return what says how long a batch takes at most, usually: 0 s while nothing is known."""
        return self._cautious_s if self.known(now) else no_forecast

    @property
    def enough_s(self) -> float:
        """After how many seconds a batch saves next to nothing by growing, and others wait."""
        return ENOUGH * max(self._weights[0], HAND_OFF_S)

    def batch_s(self, rows: int, ids: int) -> float:
        """Return the seconds that one batch takes."""
        overhead_s, row_s, id_s = self._weights
        return overhead_s + rows * row_s + ids * id_s

    def all_s(self, load: Load, under_way_s: float = 0.0, priority: int = 0) -> float:
        """Return the seconds until ``load`` has been computed and answered, all lanes working.

        ``under_way_s`` is what the batches that run already still take together, ``priority`` the
        class of whoever waits for it.
        """
        limits = self._limits
        work_s = self.batch_s(load.rows, load.ids)
        batches = max(load.rows / limits.max_batch_rows, load.ids / limits.max_batch_ids)
        if limits.max_batch_requests:
            batches = max(batches, load.requests / limits.max_batch_requests)
        if batches > 1:
            batches = float(math.ceil(batches))
            work_s += (batches - 1) * self._weights[0]
            # No matter how many lanes there are, one batch takes its time.
            work_s /= min(batches, self.lanes)
        return self._stretch.get(priority, 1.0) * (under_way_s / self.lanes + work_s)

    def came_true(self, forecast_s: float, seconds: float, priority: int = 0) -> None:
        """Learn that what ``all_s`` forecast took ``seconds``.

        Batches that deadlines keep small, higher classes that arrive later, hand-offs and a busy
        event loop stretch every wait; left out of the forecast they would let in what cannot be
        answered in time.
        """
        if forecast_s > 0:
            stretch = self._stretch.get(priority, 1.0)
            stretch += 0.1 * (stretch * seconds / forecast_s - stretch)
            self._stretch[priority] = max(1.0, min(stretch, MAX_STRETCH))

    def _fit(self) -> None:
        table = np.array(self._recent)
        features, seconds = table[:, :3] * self._scales, table[:, 3]
        counts = KEEP ** np.arange(len(table) - 1.0, -1.0, -1.0)
        products = (features.T * counts) @ features
        weights = _least_squares(products, (features.T * counts) @ seconds) * self._scales
        self._weights = (float(weights[0]), float(weights[1]), float(weights[2]))

    def _cautious_s(self, rows: int, ids: int) -> float:
        return self.batch_s(rows, ids) * (1 + 2 * self._usual_error)

    def _holds(self, rows: int, ids: int, seconds: float) -> bool:
        """Return whether what was learnt before a silence still fits, by half."""
        return abs(seconds - self.batch_s(rows, ids)) <= 0.5 * seconds

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


def _least_squares(products: Floats, targets: Floats) -> Floats:
    """Solve the normal equations, leaving out features until no weight is negative."""
    weights = np.zeros(len(targets))
    products = products + RIDGE * np.trace(products) * np.eye(len(targets))
    kept = np.arange(len(targets))
    while kept.size:
        solved = np.linalg.solve(products[np.ix_(kept, kept)], targets[kept])
        if (solved >= 0).all():
            weights[kept] = solved
            break
        kept = np.delete(kept, solved.argmin())
    return weights
