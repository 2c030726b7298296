"""A model's spec as it is served."""

from dataclasses import asdict, replace

from scheduler.options import SchedulerOptions
from scheduler.rows import can_cut
from scheduler.types import ModelSpec


def served_spec(spec: ModelSpec, options: SchedulerOptions) -> ModelSpec:
    """Return ``spec`` with the rows that one request may have, and ``options`` as properties."""
    rows = spec.max_batch_rows
    if can_cut(spec):
        most_rows = options.limits(spec).max_queue_rows
        rows = min(max(options.max_request_rows, rows), most_rows)
    effective = {f"scheduler.{name}": str(value) for name, value in asdict(options).items()}
    return replace(spec, max_request_rows=rows, properties={**spec.properties, **effective})
