"""What one server is made of, in numbers: all that the simulation knows about it."""

import math
from bisect import bisect_left
from dataclasses import dataclass

from loadtest.fleet.draws import Law, constant


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
    """

    service: Service
    lanes: int = 1
    max_batch_rows: int = 1024
    max_queue_rows: float = math.inf
    read_s: float = 0.0
    write_s: float = 0.0
    hop_s: float = 0.0
    wire_s: float = 0.0

    def capacity(self, rows: int) -> float:
        """Return the requests of ``rows`` a second that full batches on all lanes come to."""
        requests = max(1, self.max_batch_rows // rows)
        lane_s = self.service.of(requests * rows) / requests / self.lanes
        return 1 / max(lane_s, self.read_s + self.write_s)
