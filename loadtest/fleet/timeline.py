"""Simulated time: what is to happen, in order. Knows no clock but its own."""

import heapq
import math
from collections.abc import Callable
from typing import Any


class Timeline:
    """Carry out actions at their times; of two at the same time, that asked for first."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._turn = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, time_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call ``action`` at ``time_s``, which is not before now."""
        self._turn += 1
        heapq.heappush(self._heap, (max(time_s, self.now_s), self._turn, action, arguments))

    def run(self, until_s: float = math.inf) -> None:
        """Carry out everything up to ``until_s``, also what is asked for meanwhile."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, action, arguments = heapq.heappop(heap)
            action(*arguments)
