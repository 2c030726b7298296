"""The table of promises; what it measures is the load generator's, tested elsewhere."""

import pytest

from loadtest.bars import BARS, Bar, line, main

LATENCY = Bar("p50 ms", "grpc", "c++", 1, "1", 0.70)
RATE = Bar("samples/s", "http", "grpc", 16, "100", 0.9)


@pytest.mark.parametrize(
    ("bar", "ours", "met"),
    [(LATENCY, 0.7, "yes"), (LATENCY, 0.71, "no"), (RATE, 0.9, "yes"), (RATE, 0.89, "no")],
)
def test_a_bar_is_met_by_the_median_of_the_rounds_ratios(bar: Bar, ours: float, met: str) -> None:
    told = line(bar, [(1.0, 9.0), (10.0, ours * 10), (1.0, 0.1)])
    assert (told["met"], told["spread"]) == (met, "0.10 - 9.00")


def test_the_open_loop_goes_by_its_own_median_on_a_mix_of_rows() -> None:
    *_, bar = BARS
    told = line(bar, [(2.0, 5.0)])
    assert (told["in flight"], told["ratio"], told["met"]) == ("70% of capacity", "2.50", "yes")
    assert [rows for rows, _ in bar.mix.rows] == [1, 10, 100]


def test_there_is_no_bar_of_a_number_beyond_the_last() -> None:
    with pytest.raises(SystemExit):
        main(["artifacts/reference", "--only", str(len(BARS) + 1)])
