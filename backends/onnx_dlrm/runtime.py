"""Load an ONNX DLRM, warm it up, run it. Imports ONNX Runtime, so it is imported on load only."""

import logging
import queue
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime

from backends.cpus import usable_cpus
from backends.dlrm.gather import DENSE, Staging
from backends.dlrm.kinds import Kind, check_served
from backends.dlrm.manifest import file_sha256
from backends.dlrm.ranges import MAKE_ONE_ONNX
from backends.ids.declared import make_rules
from backends.ids.rules import IdRules
from backends.onnx_dlrm.described import Described, describe
from backends.onnx_dlrm.options import OnnxDlrmOptions
from backends.onnx_dlrm.session import OnnxErrors, Session, open_session
from scheduler.backend import Compute
from scheduler.errors import LoadError
from scheduler.types import Array, Batch, InferRequest, ModelSpec, TensorSpec

MODEL_FILE, WEIGHTS_FILE = "model.onnx", "model.onnx.data"
_log = logging.getLogger(__name__)


class Runtime:
    """Run one session from as many threads as ask; host buffers are reused."""

    def __init__(self, session: Session, described: Described, stagings: int, rows: int) -> None:
        self._session = session
        self._layout = described.layout
        self._make_staging = partial(
            Staging, described.layout, session.dense_features, rows, np.empty
        )
        self._stagings: queue.SimpleQueue[Staging] = queue.SimpleQueue()
        for _ in range(stagings):
            self._stagings.put(self._make_staging())

    def prepare(self, batch: Batch) -> Compute:
        """Gather ``batch``; return what computes its outputs, in memory of their own."""
        try:
            staging = self._stagings.get_nowait()
        except queue.Empty:
            staging = self._make_staging()
        return partial(self._compute, staging, staging.gather(batch), batch.rows)

    def _compute(
        self, staging: Staging, inputs: Mapping[str, Array], rows: int
    ) -> dict[str, Array]:
        try:
            outputs = self._run(inputs) if rows else self._run_nothing()
        finally:
            self._stagings.put(staging)
        return dict(zip(self._session.outputs, map(_by_row, outputs), strict=True))

    def _run(self, inputs: Mapping[str, Array]) -> list[Array]:
        layout = self._layout
        lengths = inputs[layout.lengths].reshape(len(layout.features), -1)
        return self._session.run(inputs[DENSE], lengths, inputs[layout.values])

    def _run_nothing(self) -> list[Array]:
        """Run one empty row and return none of it: few graphs take no rows, some divide by them."""
        dense = np.zeros((1, self._session.dense_features), np.float32)
        lengths = np.zeros((len(self._layout.features), 1), np.int32)
        return [output[:0] for output in self._session.run(dense, lengths, lengths[:0, 0])]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to serve."""

    runtime: Runtime
    described: Described
    rules: IdRules
    spec: ModelSpec
    lanes: int


def load(options: OnnxDlrmOptions) -> Loaded:
    """Load, check and warm up the model of ``options``. Raises LoadError."""
    path = _find(options.path)
    session = open_session(path)
    described = describe(path, session.metadata)
    _check_sizes(path, session, described)
    rules = make_rules(described.layout, described.ids, options.ids)
    lanes = options.lanes or usable_cpus()
    # One more than lanes: the next batch is gathered while every lane computes.
    runtime = Runtime(session, described, lanes + 1, options.max_batch_rows)
    outputs = _probe(path, runtime, session, described)
    _warm_up(runtime, session, described, options.max_batch_rows)
    properties = {**_properties(path, described, lanes), "ids": rules.text}
    spec = replace(
        _spec(options, session, described, outputs, properties),
        id_policies=rules.policies,
        vocabularies=rules.vocabularies,
    )
    return Loaded(runtime, described, rules, spec, lanes)


def _find(path: str) -> Path:
    if not path:
        raise LoadError(f"no model: give the path of an ONNX file or a folder with a {MODEL_FILE}")
    place = Path(path)
    check_served(place, {Kind.ONNX})
    found = place / MODEL_FILE if place.is_dir() else place
    if not found.is_file():
        raise LoadError(f"{found} does not exist; {MAKE_ONE_ONNX.format(path=place)}")
    return found


def _check_sizes(path: Path, session: Session, described: Described) -> None:
    """Refuse a description, or a file of weights, that is not the model's. Raises LoadError."""
    told = described.weights_sha256
    weights = path.with_name(f"{path.name}.data")
    if told and (found := file_sha256(weights)) != told:
        raise LoadError(
            f"{weights} has SHA-256 {found}, but {path.name} says {told}: the file is damaged or "
            "was replaced; export it again"
        )
    features, dense = len(described.layout.features), len(described.dense_names)
    if session.features not in {0, features}:
        raise LoadError(f"{path}: {session.features} id features, {features} tables are described")
    if dense not in {0, session.dense_features}:
        raise LoadError(f"{path}: {session.dense_features} dense features, {dense} are named")


def _by_row(scores: Array) -> Array:
    """Turn (rows, 1) into (rows,): one score a row, whichever way it was packaged."""
    return scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores


def _probe(
    path: Path, runtime: Runtime, session: Session, described: Described
) -> tuple[TensorSpec, ...]:
    """Run two rows to learn the outputs. Raises LoadError if that is not possible."""
    try:
        outputs = runtime.prepare(_ones(session, described, 2))()
    except OnnxErrors as error:
        raise LoadError(f"{path} does not run as a DLRM: {error}") from error
    for name, scores in outputs.items():
        if not scores.ndim or len(scores) != 2:
            raise LoadError(f"{path}: output {name!r} has shape {scores.shape} for 2 rows")
        if not np.isfinite(scores).all():
            raise LoadError(f"{path}: output {name!r} of an ordinary request is not finite")
    return tuple(
        TensorSpec(name, scores.dtype, ("rows", *scores.shape[1:]))
        for name, scores in outputs.items()
    )


def _warm_up(runtime: Runtime, session: Session, described: Described, most: int) -> None:
    """Let the library's memory grow before the first request needs it."""
    start = time.perf_counter()
    for rows in sorted({1, min(16, most), most}):
        runtime.prepare(_ones(session, described, rows))()
    _log.info("warmed up %s in %.2f s", described.name, time.perf_counter() - start)


def _ones(session: Session, described: Described, rows: int) -> Batch:
    """Return a batch with one id 0 a bag."""
    layout = described.layout
    features = len(layout.features)
    inputs: dict[str, Array] = {
        DENSE: np.zeros((rows, session.dense_features), np.float32),
        layout.lengths: np.ones((features, rows), np.int64),
        layout.values: np.zeros(features * rows, np.int64),
    }
    return Batch((InferRequest(described.name, rows, inputs),))


def _spec(
    options: OnnxDlrmOptions,
    session: Session,
    described: Described,
    outputs: tuple[TensorSpec, ...],
    properties: dict[str, str],
) -> ModelSpec:
    layout, ids = described.layout, np.dtype(np.int64)
    dense_shape, floats = ("rows", session.dense_features), np.dtype(np.float32)
    lengths_shape = (len(layout.features), "rows")
    return ModelSpec(
        name=options.name or described.name,
        version=options.version or described.version,
        inputs=(
            TensorSpec(DENSE, floats, dense_shape, described.dense_names),  # type: ignore[arg-type]
            TensorSpec(layout.lengths, ids, lengths_shape, layout.features),  # type: ignore[arg-type]
            TensorSpec(layout.values, ids, ("*",), lengths=layout.lengths),
        ),
        outputs=outputs,
        max_batch_rows=options.max_batch_rows,
        properties=properties,
    )


def _properties(path: Path, described: Described, lanes: int) -> dict[str, str]:
    return {
        "device": "cpu",
        "lanes": str(lanes),
        "threads_per_forward": "1",
        "table_rows": " ".join(str(rows) for rows in described.layout.table_rows),
        "sha256": file_sha256(path),
        "onnxruntime": onnxruntime.__version__,
    }
