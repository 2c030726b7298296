"""Small statistics that one slow spell of a shared machine does not upset."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Values = Sequence[float] | npt.NDArray[np.float64]


def median(values: Values) -> float:
    """Return the median; nan of nothing."""
    return float(np.median(values)) if len(values) else math.nan


def percentile(values: Values, share: float) -> float:
    """Return the value that ``share`` (0 to 1) of ``values`` do not exceed; nan of nothing.

    A value that occurs, never one between two, so that infinite ones (never answered) may stand
    among them.
    """
    if not len(values):
        return math.nan
    return float(np.quantile(values, share, method="inverted_cdf"))


def median_ratio(values: Values, bases: Values) -> float:
    """Return the median of each round's value by the same round's base."""
    return median([value / base for value, base in zip(values, bases, strict=True)])


def theil_sen(x: Values, y: Values) -> float:
    """Return the median slope over all pairs of points: up to 29 % of them may be outliers.

    Theil, "A rank-invariant method of linear and polynomial regression analysis", 1950; Sen, 1968.
    """
    first, second = np.triu_indices(len(x), 1)
    across, up = np.asarray(x, float), np.asarray(y, float)
    steps = across[second] - across[first]
    return median((up[second] - up[first])[steps != 0] / steps[steps != 0])
