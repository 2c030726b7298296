"""How fast a machine was while something ran: neighbours slow it by half, and go again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Pace:
    """By how much work takes longer than was calibrated: ``lane`` for each ``window_s`` from 0 on.

    The last one holds for ever. The event loop's work takes ``loop`` times that.
    """

    window_s: float = math.inf
    lane: tuple[float, ...] = (1.0,)
    loop: float = 1.0

    def lane_at(self, time_s: float) -> float:
        """Return the factor for what a lane begins at ``time_s``."""
        return self.lane[min(int(time_s / self.window_s), len(self.lane) - 1)]

    def loop_at(self, time_s: float) -> float:
        """Return the factor for what the event loop begins at ``time_s``."""
        return self.lane_at(time_s) * self.loop


STEADY = Pace()


def followed(
    ended_s: Sequence[float], took: Sequence[float], expected: Sequence[float], window_s: float
) -> Pace:
    """Return the pace of batches that ``took`` so long instead of what was ``expected`` (seconds).

    A window in which none ended has the pace of the one before, the first ones that of all.
    """
    window = np.maximum(0, np.asarray(ended_s) // window_s).astype(int)
    taken, due = np.bincount(window, took), np.bincount(window, expected)
    last = float(np.sum(took) / np.sum(expected))
    lane: list[float] = []
    for took_s, due_s in zip(taken, due, strict=True):
        last = float(took_s / due_s) if due_s else last
        lane.append(round(last, 3))
    return Pace(window_s, tuple(lane))
