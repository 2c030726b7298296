"""The simulation of the open loop's tail: right where the right figure is known."""

import pytest

from loadtest.lab.tail import Costs, Rule, main, simulate

COSTS = Costs(batch_s=1.0, request_s=0.5, row_s=0.1)


def test_a_request_alone_takes_what_it_costs_whatever_the_rule() -> None:
    for rule in (Rule(enough_s=100), Rule("small first", 100), Rule(enough_s=100, slice_rows=5)):
        took_s = simulate(COSTS, rule, [0.0, 50.0], [5, 1])
        assert took_s.tolist() == pytest.approx([2.0, 1.6])


def test_what_comes_meanwhile_shares_the_next_batch() -> None:
    took_s = simulate(COSTS, Rule(enough_s=100), [0.0, 0.5, 1.0], [5, 10, 10])
    assert took_s.tolist() == pytest.approx([2.0, 2.0 + 4.0 - 0.5, 2.0 + 4.0 - 1.0])


def test_small_ones_overtake_where_a_batch_has_enough_without_the_large() -> None:
    came_s, rows = [0.0, 0.1, 0.2], [1, 40, 1]
    first_come = simulate(COSTS, Rule(enough_s=2.0), came_s, rows)
    small_first = simulate(COSTS, Rule("small first", 2.0), came_s, rows)
    assert small_first[2] < first_come[2]


def test_a_large_one_cut_in_slices_lets_others_in_between() -> None:
    came_s, rows = [0.0, 0.1], [40, 1]
    whole, cut = (simulate(COSTS, Rule("first come", 100, each), came_s, rows) for each in (40, 10))
    assert cut[1] < whole[1]
    assert cut[0] > whole[0]


def test_capacity_is_by_batches() -> None:
    assert COSTS.capacity(5, batch=1) == pytest.approx(1 / 2.0)
    assert COSTS.capacity(5, batch=4) == pytest.approx(4 / 5.0)


def test_the_table_has_a_line_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--requests", "50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| load | order |")
    assert any(line.startswith("| 70% | small first | 2 | all |") for line in lines)
