"""When to add and when to drop a replica: sans-IO, by how much waits and how much computes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a pool may become, and how fast.

    ``up_rows`` waiting a replica for ``up_s`` ask for one more; ``down_s`` during which one fewer
    would have had lanes enough let one go.
    """

    least: int
    most: int
    up_rows: int
    up_s: float
    down_s: float


class Scaler:
    """Told what it sees, say by how many the replicas wanted change: +1, 0 or -1."""

    def __init__(self, bounds: Bounds, now: float) -> None:
        self._bounds = bounds
        self._calm_s = now  # when too few waited last
        self._needed_s = now  # when all replicas were needed last

    def observe(self, now: float, waiting_rows: int, busy_lanes: int, lanes: list[int]) -> int:
        """Return the change wanted; ``lanes`` has those of each replica there is, or is to be.

        ``busy_lanes`` is the most batches that were computed at once since the last time.
        """
        bounds, count = self._bounds, len(lanes)
        if waiting_rows <= bounds.up_rows * count:
            self._calm_s = now
        if waiting_rows or busy_lanes > sum(lanes) - max(lanes, default=0):
            self._needed_s = now
        if count < bounds.least:
            return 1
        if count < bounds.most and now - self._calm_s >= bounds.up_s:
            self._calm_s = now  # wait again, for what the new one does
            return 1
        if count > bounds.least and now - self._needed_s >= bounds.down_s:
            self._needed_s = now
            return -1
        return 0
