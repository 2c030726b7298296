"""The first batches of a model: what its outputs are, and every size of batch warmed up."""

import logging
import time
from collections.abc import Iterator

import numpy as np

from backends.dlrm.gather import DENSE
from backends.torch_dlrm.artifact import Facts
from backends.torch_dlrm.runtime import Runtime
from backends.torch_dlrm.serving import Serving
from scheduler.errors import LoadError
from scheduler.types import Array, Batch, InferRequest, TensorSpec

_log = logging.getLogger(__name__)


def probe(runtime: Runtime, facts: Facts) -> tuple[TensorSpec, ...]:
    """Run two rows to learn the outputs. Raises LoadError if that is not possible."""
    try:
        outputs = runtime.prepare(_zeros(facts, 2))()
    except KeyError as error:
        raise LoadError(f"--outputs: the model has no output {error}") from error
    except (RuntimeError, AttributeError, TypeError) as error:
        raise LoadError(f"the model file does not run as a TorchRec DLRM: {error}") from error
    for name, scores in outputs.items():
        if not scores.ndim or len(scores) != 2:
            raise LoadError(f"output {name!r} of the model has shape {scores.shape} for 2 rows")
    return tuple(
        TensorSpec(name, scores.dtype, ("rows", *scores.shape[1:]))
        for name, scores in outputs.items()
    )


def warm_up(runtime: Runtime, facts: Facts, serving: Serving) -> None:
    """Run every power of two up to the limit, and the limit, twice; then what else makes code."""
    start = time.perf_counter()
    for rows in _buckets(serving.most_rows):
        # Twice: TorchScript profiles its first run and optimises in its second.
        for _ in range(2):
            runtime.prepare(_zeros(facts, rows))()
    for rows in serving.warmed_rows:
        if rows <= serving.most_rows:
            runtime.prepare(_zeros(facts, rows))()
    _log.info("warmed up %s in %.2f s", facts.name, time.perf_counter() - start)


def _buckets(max_batch_rows: int) -> Iterator[int]:
    rows = 1
    while rows < max_batch_rows:
        yield rows
        rows *= 2
    yield max_batch_rows


def _zeros(facts: Facts, rows: int) -> Batch:
    features = len(facts.layout.features)
    inputs: dict[str, Array] = {
        DENSE: np.zeros((rows, facts.dense_features), np.float32),
        facts.layout.lengths: np.ones((features, rows), np.int64),
        facts.layout.values: np.zeros(features * rows, np.int64),
    }
    return Batch((InferRequest(facts.name, rows, inputs),))
