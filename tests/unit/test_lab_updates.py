"""The lab of updates: whose turn it is, and runs that are read as one."""

from pathlib import Path

from loadtest.lab.updates_rounds import FOLDER, HTTP, NOTHING, TURN_S, Rounds, joined, lines


def test_turns_follow_each_other_and_nobody_is_sent_to_in_that_of_nothing() -> None:
    rounds = Rounds((NOTHING, HTTP, FOLDER))
    at_s = [turn * TURN_S for turn in range(7)]
    assert [rounds.turn_at(each) for each in at_s] == [NOTHING, HTTP, FOLDER] * 2 + [NOTHING]
    assert [rounds.round_at(each) for each in at_s] == [0, 0, 0, 1, 1, 1, 2]
    assert rounds.next_turn(TURN_S * 1.5) == TURN_S * 1.5
    assert rounds.next_turn(TURN_S * 3.5) == TURN_S * 4


def test_runs_that_are_kept_in_one_file_are_read_as_one(tmp_path: Path) -> None:
    kept = tmp_path / "rounds.json"
    first = {NOTHING: {"7": [0.001] * 10}, HTTP: {"7": [0.002] * 10}}
    second = {NOTHING: {"7": [0.003] * 10}, HTTP: {"7": [0.003] * 10}}
    assert joined(kept, first)[HTTP] == {"0.7": [0.002] * 10}
    both = joined(kept, second)
    assert both[HTTP] == {"0.7": [0.002] * 10, "1.7": [0.003] * 10}
    nothing, http = lines(both, seed=0)
    assert (nothing["requests"], http["requests"]) == (20, 20)
    assert http["p99 ms"] == nothing["p99 ms"] == 3.0
    assert http["p50 ratio"] == "x1.25 (1.00 to 2.00)"
