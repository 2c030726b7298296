"""What can be set for the scheduling of every model."""

import math
from dataclasses import asdict, dataclass, field, replace

from scheduler.rows import can_cut
from scheduler.types import ModelSpec
from scheduler.waiting import Limits

MODES = ("batch", "worker", "inline")
ON_FAILURE = ("report", "reload")


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Choose how a model's requests run, bound what waits and what runs together."""

    mode: str = field(
        default="batch",
        metadata={
            "help": "batch: continuous batching; worker: one request at a time on each lane;"
            " inline: one at a time on the event loop itself"
        },
    )
    max_queue_rows: int = field(
        default=65_536, metadata={"help": "rows that may wait; beyond it requests are refused"}
    )
    max_queue_bytes: int = field(
        default=268_435_456,
        metadata={"help": "bytes that may wait; beyond it requests are refused"},
    )
    max_batch_ids: int = field(
        default=262_144,
        metadata={"help": "ids in one batch, which are what an embedding lookup costs"},
    )
    max_request_rows: int = field(
        default=16_384,
        metadata={"help": "rows of one request, if above max_batch_rows: it is split over batches"},
    )
    max_delay_s: float = field(
        default=0.0,
        metadata={"help": "seconds a batch that is not full may wait for more; 0 starts at once"},
    )
    priorities: int = field(
        default=4, metadata={"help": "priority classes, 0 the first to be served"}
    )
    ageing_s: float = field(
        default=0.5,
        metadata={
            "help": "seconds by which a request without a deadline must be older to go before a"
            " newcomer of its class; three times that to go before one of the next higher class"
        },
    )
    refuse_late: bool = field(
        default=True,
        metadata={"help": "refuse at once what cannot be answered before its timeout"},
    )
    inline_below_s: float = field(
        default=0.001,
        metadata={
            "help": "batch mode: a lone request predicted to take less runs on the event loop,"
            " without the hand-off to a lane; 0 never"
        },
    )
    watchdog_s: float = field(
        default=30.0, metadata={"help": "seconds after which a batch counts as stuck; 0 never"}
    )
    on_failure: str = field(
        default="report",
        metadata={
            "help": "what to do when a model fails for good: report (not live, so that it is"
            " restarted from outside) or reload"
        },
    )

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        _one_of("mode", self.mode, MODES)
        _one_of("on_failure", self.on_failure, ON_FAILURE)
        for name in (
            "max_queue_rows", "max_queue_bytes", "max_batch_ids", "max_request_rows", "priorities",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("max_delay_s", "inline_below_s", "watchdog_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name):g}")
        if not 0 < self.ageing_s < math.inf:
            raise ValueError(f"ageing_s must be above 0, got {self.ageing_s:g}")
        if self.max_delay_s and self.mode != "batch":
            raise ValueError(f"max_delay_s gathers batches, and mode {self.mode!r} forms none")

    def limits(self, spec: ModelSpec) -> Limits:
        """Return the bounds for one model; a queue always has room for one full batch."""
        return Limits(
            max_queue_rows=max(self.max_queue_rows, spec.max_batch_rows),
            max_queue_bytes=self.max_queue_bytes,
            max_batch_rows=spec.max_batch_rows,
            max_batch_ids=self.max_batch_ids,
            max_batch_requests=0 if self.mode == "batch" else 1,
            max_delay_s=self.max_delay_s,
            ageing_s=self.ageing_s,
        )

    def served(self, spec: ModelSpec) -> ModelSpec:
        """Return ``spec`` as it is served: with the rows that one request may have, and these."""
        rows = spec.max_batch_rows
        if can_cut(spec):
            rows = min(max(self.max_request_rows, rows), self.limits(spec).max_queue_rows)
        effective = {f"scheduler.{name}": str(value) for name, value in asdict(self).items()}
        return replace(spec, max_request_rows=rows, properties={**spec.properties, **effective})


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be {' or '.join(known)}, got {value!r}")
