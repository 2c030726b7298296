"""Whose turn it is in the lab of updates, and what the rounds of all turns come to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

# By turn and round.
Latencies: TypeAlias = dict[str, dict[str, list[float]]]

# A turn is as long as that; then it is the next one's.
TURN_S = 0.5
NOTHING, HTTP, FOLDER, SINK = "nothing", "HTTP", "folder", "sink"
TURNS = (NOTHING, HTTP, FOLDER, SINK)
_PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Rounds:
    """Who has a turn in each round, one after the other, on the clock that all processes share."""

    turns: tuple[str, ...] = TURNS

    def turn_at(self, at_s: float) -> str:
        """Return whose turn it is at that time."""
        return self.turns[int(at_s / TURN_S) % len(self.turns)]

    def round_at(self, at_s: float) -> int:
        """Return which round that time is in."""
        return int(at_s / TURN_S) // len(self.turns)

    def next_turn(self, due_s: float) -> float:
        """Return when from ``due_s`` on somebody has the turn who is sent to."""
        while self.turn_at(due_s) == NOTHING:
            due_s = (int(due_s / TURN_S) + 1) * TURN_S
        return due_s


def joined(kept: Path, latencies_s: Latencies) -> Latencies:
    """Keep one more run in a file, a line each; return the rounds of all of them."""
    with kept.open("a", encoding="utf-8") as file:
        file.write(json.dumps(latencies_s) + "\n")
    runs: list[Latencies] = [json.loads(line) for line in kept.read_text("utf-8").splitlines()]
    return {
        turn: {
            f"{run}.{at}": each for run, one in enumerate(runs) for at, each in one[turn].items()
        }
        for turn in latencies_s
    }


def lines(
    latencies_s: Mapping[str, Mapping[str, Sequence[float]]], seed: int
) -> list[dict[str, float | str]]:
    """Return the percentiles of each kind of turn, and their ratios to those of nothing."""
    whole = sorted(set.intersection(*(set(by_round) for by_round in latencies_s.values())))
    taken = {
        turn: [np.asarray(by_round[each]) for each in whole]
        for turn, by_round in latencies_s.items()
    }
    draws = np.random.default_rng(seed).integers(0, len(whole), (_RESAMPLES, len(whole)))
    drawn = {
        turn: np.array([_percentiles([rounds[at] for at in draw]) for draw in draws])
        for turn, rounds in taken.items()
    }
    found: list[dict[str, float | str]] = []
    for turn, rounds in taken.items():
        line: dict[str, float | str] = {"": turn, "requests": float(sum(map(len, rounds)))}
        here, bases = _percentiles(rounds), _percentiles(taken[NOTHING])
        ratios = np.percentile(drawn[turn] / drawn[NOTHING], [2.5, 97.5], axis=0)
        for at, name in enumerate(_PERCENTILES):
            line[f"{name} ms"] = 1e3 * float(here[at])
            low, high = ratios[:, at]
            line[f"{name} ratio"] = f"x{here[at] / bases[at]:.2f} ({low:.2f} to {high:.2f})"
        found.append(line)
    return found


def _percentiles(rounds: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    return np.percentile(np.concatenate(rounds), list(_PERCENTILES.values()))
