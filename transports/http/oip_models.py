"""What is served, as the Open Inference Protocol's pages write it."""

from typing import Any, TypeAlias

from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.types import ModelSpec
from transports.codecs.oip_http_model import document_of
from transports.codecs.oip_protobuf_model import config_message, metadata_message
from transports.statistics import BatchFigures, ModelFigures, Spent, specs_asked, statistics_of

Document: TypeAlias = dict[str, Any]


def metadata(engine: Engine, model: str, version: str) -> Document:
    """Describe a model's tensors, for clients that make requests. Raises ServingError."""
    spec = engine.spec(model, version)
    versions = [other.version for other in engine.specs() if other.name == spec.name]
    return document_of(metadata_message(spec, versions))


def config(engine: Engine, model: str, version: str) -> Document:
    """Describe a model as Triton's configuration does. Raises ServingError."""
    return document_of(config_message(engine.spec(model, version)))


def statistics(engine: Engine, model: str = "", version: str = "") -> Document:
    """Report what has been counted for each version of ``model``, or for one; "" is every model.

    Raises ServingError, UNSUPPORTED if nobody counts.
    """
    counted = statistics_of(engine)
    if counted is None:
        raise ServingError(Code.UNSUPPORTED, "this server keeps no statistics")
    specs = specs_asked(engine, model, version)
    return {"model_stats": [_figures(spec, counted.of(spec.name, spec.version)) for spec in specs]}


def _figures(spec: ModelSpec, figures: ModelFigures) -> Document:
    """Gathering is what Triton calls compute_input; its clients expect as many of each compute."""
    return {
        "name": spec.name,
        "version": spec.version,
        "last_inference": figures.last_ms,
        "inference_count": figures.rows,
        "execution_count": figures.batches,
        "inference_stats": {
            "success": _spent(figures.success),
            "fail": _spent(figures.fail),
            "queue": _spent(figures.queue),
            "compute_input": _spent(figures.gather),
            "compute_infer": _spent(figures.compute),
            "compute_output": _spent(Spent(figures.compute.count)),
            "cache_hit": _spent(Spent()),
            "cache_miss": _spent(Spent()),
        },
        "batch_stats": [_batch(rows, batch) for rows, batch in sorted(figures.by_rows.items())],
    }


def _batch(rows: int, batch: BatchFigures) -> Document:
    return {
        "batch_size": rows,
        "compute_input": _spent(batch.gather),
        "compute_infer": _spent(batch.compute),
        "compute_output": _spent(Spent(batch.compute.count)),
    }


def _spent(spent: Spent) -> Document:
    return {"count": spent.count, "ns": spent.ns}
