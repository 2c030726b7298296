"""The table of promises; what it measures is the load generator's, tested elsewhere."""

from collections.abc import Mapping

import pytest

from loadtest.bars import BARS, Bar, line, main, measure
from loadtest.record import Outcome, Recorder
from loadtest.rivals import CPP, Rivals
from loadtest.workload import Mix

LATENCY = Bar("p50 ms", "grpc", "c++", 1, "1", 0.70)
RATE = Bar("samples/s", "http", "grpc", 16, "100", 0.9)
*_, TAIL = BARS


class Recorded(Rivals):
    """Servers whose requests take known times; what was asked of them, in order."""

    # The median and the 99th of 100 requests, in ms: with one in flight, and of an open loop.
    ALONE: Mapping[str, tuple[int, int]] = {"grpc": (1, 5), CPP: (2, 6)}
    OPEN: Mapping[str, tuple[int, int]] = {"grpc": (4, 10), CPP: (8, 40)}
    CAPACITY: Mapping[str, int] = {"grpc": 1000, CPP: 500}

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []

    def closed(self, name: str, mix: Mix, in_flight: int) -> Outcome:
        self.asked.append((name, in_flight))
        recorder, (p50, p99) = Recorder(1.0), self.ALONE[name]
        count = 100 if in_flight == 1 else self.CAPACITY[name]
        for number in range(count):
            took_s = (p99 if number % 50 == 0 else p50) / 1e3
            recorder.answered(number / count, took_s, took_s)
        return recorder.outcome(1.0, 0.0)

    def open(self, name: str, mix: Mix, rate: float) -> Outcome:
        self.asked.append((name, rate))
        recorder, (p50, p99) = Recorder(1.0), self.OPEN[name]
        for number in range(100):
            recorder.answered(number / 100, (p99 if number % 50 == 0 else p50) / 1e3, 1e-3)
        return recorder.outcome(1.0, 0.0)


@pytest.mark.parametrize(
    ("bar", "ours", "met"),
    [(LATENCY, 0.7, "yes"), (LATENCY, 0.71, "no"), (RATE, 0.9, "yes"), (RATE, 0.89, "no")],
)
def test_a_bar_is_met_by_the_median_of_the_rounds_ratios(bar: Bar, ours: float, met: str) -> None:
    told = line(bar, [(1.0, 9.0), (10.0, ours * 10), (1.0, 0.1)])
    assert (told["met"], told["spread"]) == (met, "0.10 - 9.00")


def test_the_open_loop_goes_by_its_own_median_on_a_mix_of_rows() -> None:
    told = line(TAIL, [(2.0, 5.0)])
    assert (told["in flight"], told["ratio"], told["met"]) == ("70% of capacity", "2.50", "yes")
    assert [rows for rows, _ in TAIL.mix.rows] == [1, 10, 100]


def test_beside_the_open_loop_stands_what_nothing_queued_and_the_yardstick_have() -> None:
    sides = Recorded()
    bar, one_by_one, far_apart, yardstick, same_rate = measure(TAIL, sides, rounds=2)
    assert [told["ratio"] for told in (bar, one_by_one, yardstick)] == ["2.50", "5.00", "5.00"]
    assert far_apart["in flight"] == "5% of capacity"
    assert (same_rate["in flight"], same_rate["ratio"]) == ("70% of c++'s capacity", "0.25")
    one_round = [
        ("grpc", 16), ("grpc", 700.0), ("grpc", 1), ("grpc", 16), ("grpc", 50.0),
        (CPP, 16), (CPP, 350.0), (CPP, 16), (CPP, 350.0), ("grpc", 350.0),
    ]  # fmt: skip
    assert sides.asked == one_round * 2


def test_what_stands_beside_a_bar_is_none() -> None:
    bar, *beside = measure(TAIL, Recorded(), rounds=1)
    assert (bar["to reach"], bar["met"]) == ("<= 3.0", "yes")
    assert {(told["to reach"], told["met"]) for told in beside} == {("", "")}


def test_there_is_no_bar_of_a_number_beyond_the_last() -> None:
    with pytest.raises(SystemExit):
        main(["artifacts/reference", "--only", str(len(BARS) + 1)])
