"""What one server is made of, in numbers: all that the simulation knows about it."""

import math
from bisect import bisect_left
from dataclasses import dataclass

from loadtest.fleet.draws import Law, constant
from loadtest.fleet.pace import STEADY, Pace

# To read, if all come together; to hear of the lane's end; to answer.
TURNS_A_BATCH = 3


@dataclass(frozen=True, slots=True)
class Service:
    """How long a lane takes for a batch: ``seconds`` by ``rows``, straight lines between them.

    Beyond the last point the last line goes on; a single point holds for every size. ``law`` has
    the factor of each batch.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    law: Law = constant

    def of(self, rows: int) -> float:
        """Return the seconds of a batch of ``rows``, without the factor."""
        if len(self.rows) == 1:
            return self.seconds[0]
        upper = min(max(1, bisect_left(self.rows, rows)), len(self.rows) - 1)
        left, right = self.rows[upper - 1], self.rows[upper]
        low, high = self.seconds[upper - 1], self.seconds[upper]
        return max(0.0, low + (high - low) * (rows - left) / (right - left))


@dataclass(frozen=True, slots=True)
class Box:
    """One server.

    A request costs the event loop ``read_s``, its answer ``write_s``; both go one after the other.
    ``hop_s`` is what a batch takes from the loop to a lane, and back. ``wire_s`` is everything
    outside of the server, once for a request and its answer together.

    ``shared``: loop and the one lane have one processor between them, so that neither goes on while
    the other works. Then each turn of the loop costs ``turn_s`` besides, one that is due while the
    lane computes begins ``yield_s`` late, one that is due while nobody does ``idle_s``, and a hop
    is nothing but that. A batch that takes ``enough_s`` grows no further. ``pace`` is the
    machine's.
    """

    service: Service
    lanes: int = 1
    max_batch_rows: int = 1024
    max_queue_rows: float = math.inf
    read_s: float = 0.0
    write_s: float = 0.0
    hop_s: float = 0.0
    wire_s: float = 0.0
    shared: bool = False
    turn_s: float = 0.0
    yield_s: float = 0.0
    idle_s: float = 0.0
    enough_s: float = math.inf
    pace: Pace = STEADY

    def __post_init__(self) -> None:
        """Refuse what is not simulated. Raises ValueError."""
        if self.shared and self.lanes != 1:
            raise ValueError(f"lanes of a shared processor must be 1, got {self.lanes}")

    def capacity(self, rows: int) -> float:
        """Return the requests of ``rows`` a second that full batches on all lanes come to."""
        requests = max(1, self.max_batch_rows // rows)
        lane_s = self.service.of(requests * rows) / requests / self.lanes
        loop_s = self.read_s + self.write_s
        if self.shared:
            return 1 / (lane_s + loop_s + TURNS_A_BATCH * self.turn_s / requests)
        return 1 / max(lane_s, loop_s)
