"""The histogram keeps three digits, and adds up as if one process had counted everything."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.histogram import MOST_S, UNIT_S, Histogram

latencies = st.lists(st.floats(0, 100), min_size=1, max_size=200)


@given(latencies, st.floats(0, 100))
def test_a_percentile_is_the_exact_one_to_a_thousandth(values: list[float], percent: float) -> None:
    limited = np.minimum(values, MOST_S)
    rank = max(1, math.ceil(round(percent / 100 * len(values), 6)))
    exact = np.sort(limited)[rank - 1]
    assert Histogram.of(values).percentile(percent) == pytest.approx(exact, rel=1e-3, abs=UNIT_S)


@given(latencies, latencies)
def test_a_sum_is_the_histogram_of_all(a: list[float], b: list[float]) -> None:
    total = Histogram.of(a) + Histogram.of(b)
    np.testing.assert_array_equal(total.counts, Histogram.of(a + b).counts)
    assert total.total == len(a) + len(b)


@given(latencies)
def test_packing_loses_nothing(values: list[float]) -> None:
    histogram = Histogram.of(values)
    unpacked = Histogram.unpacked(histogram.packed())
    np.testing.assert_array_equal(unpacked.counts, histogram.counts)


@given(latencies)
def test_the_curve_ends_with_all(values: list[float]) -> None:
    x, shares = Histogram.of(values).curve()
    assert x == sorted(x)
    assert shares[-1] == pytest.approx(1.0)


@given(st.text())
def test_what_is_no_packed_histogram_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Histogram.unpacked(text)


def test_the_share_within_a_limit_counts_the_limit() -> None:
    histogram = Histogram.of([0.001, 0.002, 0.003, 0.2])
    assert histogram.share_within(0.003) == 0.75
    assert histogram.share_within(math.inf) == 1.0


def test_nothing_has_no_percentile() -> None:
    assert math.isnan(Histogram().percentile(50))
    assert math.isnan(Histogram().share_within(1))
