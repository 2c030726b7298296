"""A model's figures as Triton's statistics extension writes them."""

from scheduler.types import ModelSpec
from transports.proto.open_inference_pb2 import (
    InferBatchStatistics,
    InferStatistics,
    ModelStatistics,
    StatisticDuration,
)
from transports.statistics import ModelFigures, Spent


def statistics_message(spec: ModelSpec, figures: ModelFigures) -> ModelStatistics:
    """Return the figures of the version of ``spec``.

    Gathering is what Triton calls compute_input. Handing out the outputs is not timed, but counted:
    its clients expect the same number as for the other two.
    """
    return ModelStatistics(
        name=spec.name,
        version=spec.version,
        last_inference=figures.last_ms,
        inference_count=figures.rows,
        execution_count=figures.batches,
        inference_stats=InferStatistics(
            success=_duration(figures.success),
            fail=_duration(figures.fail),
            queue=_duration(figures.queue),
            compute_input=_duration(figures.gather),
            compute_infer=_duration(figures.compute),
            compute_output=StatisticDuration(count=figures.compute.count),
            cache_hit=StatisticDuration(),
            cache_miss=StatisticDuration(),
        ),
        batch_stats=[
            InferBatchStatistics(
                batch_size=rows,
                compute_input=_duration(batches.gather),
                compute_infer=_duration(batches.compute),
                compute_output=StatisticDuration(count=batches.compute.count),
            )
            for rows, batches in sorted(figures.by_rows.items())
        ],
    )


def _duration(spent: Spent) -> StatisticDuration:
    return StatisticDuration(count=spent.count, ns=spent.ns)
