"""A version's golden batch: a request and the scores that it must get, in ``golden.npz``.

The request's tensors go by the names of the model's inputs; the scores by ``served.``,
``int8.``, ``expected.`` or ``fp32.`` and the name of the output, the first of these that is there.
"""

import io
import logging
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.repository.plan import GoldenOptions
from scheduler.backend import Backend
from scheduler.errors import LoadError, ServingError
from scheduler.rows import can_cut, cut
from scheduler.types import Array, Batch, InferRequest, ModelSpec
from scheduler.validate import validate

logger = logging.getLogger(__name__)

FILE = "golden.npz"
MAX_BYTES = 256 << 20
_PREFIXES = ("served.", "int8.", "expected.", "fp32.")
# What NumPy's reader raises on bytes that are no such file.
_DAMAGED = (
    OSError, LookupError, ValueError, TypeError, EOFError, RuntimeError, MemoryError, SyntaxError,
    NotImplementedError, OverflowError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def prove(backend: Backend, spec: ModelSpec, folder: Path, options: GoldenOptions) -> None:
    """Let ``backend``, loaded, score the golden batch in ``folder``.

    Raises LoadError if the scores are others, or if there is no batch and there has to be one.
    """
    file = folder / FILE
    if not file.exists():
        if options.required:
            raise LoadError(f"it has no {FILE}, and golden.required is set")
        logger.info("%s version %s: no %s, served unproven", spec.name, spec.version, FILE)
        return
    arrays = _read(file)
    request, expected = _request(spec, arrays), _expected(spec, arrays)
    try:
        validate(replace(spec, max_request_rows=request.rows), request)
        backend.check(request)
    except ServingError as error:
        raise LoadError(f"{FILE} is no request for this model: {error.detail}") from error
    _compare(_scores(backend, spec, request), expected, options.tolerance)


def _read(file: Path) -> dict[str, Array]:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        data = file.read_bytes()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES} bytes, unpacked")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except _DAMAGED as error:
        raise LoadError(f"cannot read {FILE}: {error}") from error


def _request(spec: ModelSpec, arrays: Mapping[str, Array]) -> InferRequest:
    inputs = {tensor.name: arrays[tensor.name] for tensor in spec.inputs if tensor.name in arrays}
    for tensor in spec.inputs:
        if tensor.name in inputs and "rows" in tensor.shape:
            axis, array = tensor.shape.index("rows"), inputs[tensor.name]
            if array.ndim > axis and array.shape[axis]:
                return InferRequest("", array.shape[axis], inputs, id="golden")
    raise LoadError(f"{FILE} has no rows for the inputs of this model")


def _expected(spec: ModelSpec, arrays: Mapping[str, Array]) -> dict[str, Array]:
    for prefix in _PREFIXES:
        names = [tensor.name for tensor in spec.outputs if f"{prefix}{tensor.name}" in arrays]
        if names:
            return {name: arrays[f"{prefix}{name}"] for name in names}
    raise LoadError(f"{FILE} has no scores for the outputs of this model")


def _scores(backend: Backend, spec: ModelSpec, request: InferRequest) -> dict[str, Array]:
    parts = [backend.prepare(Batch((part,)))() for part in _parts(spec, request)]
    return {
        tensor.name: np.concatenate([part[tensor.name] for part in parts])
        for tensor in spec.outputs
    }


def _parts(spec: ModelSpec, request: InferRequest) -> Iterator[InferRequest]:
    """Yield ``request`` in batches as large as the model takes."""
    most = spec.max_batch_rows
    if request.rows > most and not can_cut(spec):
        raise LoadError(f"{FILE} has {request.rows} rows, and a batch {most} at most")
    for start in range(0, request.rows, most):
        yield cut(spec, request, start, min(start + most, request.rows))


def _compare(scores: Mapping[str, Array], expected: Mapping[str, Array], tolerance: float) -> None:
    for name, right in expected.items():
        if scores[name].shape != right.shape:
            raise LoadError(
                f"{FILE}: output {name!r} has shape {list(scores[name].shape)},"
                f" expected {list(right.shape)}"
            )
        gaps = np.abs(scores[name].astype(np.float64) - right.astype(np.float64))
        largest = float(gaps.max()) if gaps.size else 0.0
        if not largest <= tolerance:  # also for NaN
            raise LoadError(
                f"golden batch: the scores of {name!r} differ by {largest:.3g} from {FILE},"
                f" above the tolerance of {tolerance:g}"
            )
