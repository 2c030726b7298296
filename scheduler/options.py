"""What can be set for the scheduling of every model."""

import math
from dataclasses import dataclass, field

from scheduler.queue import Limits
from scheduler.types import ModelSpec


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Bound what waits and what runs together."""

    max_queue_rows: int = field(
        default=65_536, metadata={"help": "rows that may wait; beyond it requests are refused"}
    )
    max_queue_bytes: int = field(
        default=268_435_456,
        metadata={"help": "bytes that may wait; beyond it requests are refused"},
    )
    max_delay_s: float = field(
        default=0.0,
        metadata={"help": "seconds a batch that is not full may wait for more; 0 starts at once"},
    )

    def __post_init__(self) -> None:
        """Refuse bounds under which nothing could be served. Raises ValueError."""
        if self.max_queue_rows < 1 or self.max_queue_bytes < 1:
            raise ValueError("max_queue_rows and max_queue_bytes must be at least 1")
        if not 0 <= self.max_delay_s < math.inf:
            raise ValueError(f"max_delay_s must be 0 or more, got {self.max_delay_s:g}")

    def limits(self, spec: ModelSpec) -> Limits:
        """Return the bounds for one model; a queue always has room for one full batch."""
        return Limits(
            max_queue_rows=max(self.max_queue_rows, spec.max_batch_rows),
            max_queue_bytes=self.max_queue_bytes,
            max_batch_rows=spec.max_batch_rows,
            max_delay_s=self.max_delay_s,
        )
