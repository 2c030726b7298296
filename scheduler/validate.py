"""Check a request against its model's spec: names, dtypes and shapes. Backends check the rest."""

import functools
from collections.abc import Iterable

import numpy as np

from scheduler.errors import invalid, shown
from scheduler.types import Array, Dim, InferRequest, ModelSpec, TensorSpec


def validate(spec: ModelSpec, request: InferRequest, priorities: int = 1) -> None:
    """Refuse a request that ``spec`` rules out, naming the field, the limit and the value.

    Raises ServingError with INVALID_REQUEST.
    """
    check_rows(request.rows, spec)
    if not request.timeout_s > 0:
        raise invalid(f"timeout: must be above 0 s, got {request.timeout_s:g} s")
    if not 0 <= request.priority < priorities:
        raise invalid(f"priority: must be 0 to {priorities - 1}, got {request.priority}")
    _check_inputs(spec, request)
    if request.outputs:
        _check_names("output", [tensor.name for tensor in spec.outputs], request.outputs)


def check_rows(rows: int, spec: ModelSpec) -> None:
    """Refuse more rows than a request may have; codecs ask before they spend time on the values.

    Raises ServingError with INVALID_REQUEST.
    """
    if rows < 0:
        raise invalid(f"rows: must be at least 0, got {rows}")
    limit = spec.max_request_rows or spec.max_batch_rows
    if rows > limit:
        raise invalid(f"rows: {rows} exceed the limit of {limit} rows (max_request_rows)")


def _check_inputs(spec: ModelSpec, request: InferRequest) -> None:
    known = 0
    for tensor in spec.inputs:
        array = request.inputs.get(tensor.name)
        if array is not None:
            known += 1
            _check_tensor(tensor, array, request.rows)
            if tensor.lengths and tensor.lengths not in request.inputs:
                raise invalid(f"{tensor.name}: {tensor.lengths} is missing beside it")
        elif not tensor.optional:
            raise invalid(f"{tensor.name}: missing; model {spec.name!r} needs it")
    if known < len(request.inputs):
        _check_names("input", [tensor.name for tensor in spec.inputs], request.inputs)


def _check_names(kind: str, known: list[str], given: Iterable[str]) -> None:
    for name in given:
        if name not in known:
            raise invalid(f"no {kind} {shown(name)}; the model has {', '.join(known)}")


def _check_tensor(spec: TensorSpec, array: Array, rows: int) -> None:
    if array.dtype is not spec.dtype and not _casts(array.dtype, spec.dtype):
        raise invalid(f"{spec.name}: expected {spec.dtype}, got {array.dtype}")
    if not _fits(spec.shape, array.shape, rows):
        wanted = ", ".join(f"rows={rows}" if dim == "rows" else str(dim) for dim in spec.shape)
        raise invalid(f"{spec.name}: expected shape [{wanted}], got {list(array.shape)}")


@functools.lru_cache(maxsize=256)
def _casts(given: np.dtype[np.generic], wanted: np.dtype[np.generic]) -> bool:
    # Same kind as well as a safe cast: numpy calls bool -> int64 safe, and True is not an id.
    return given.kind == wanted.kind and np.can_cast(given, wanted, "safe")


def _fits(wanted: tuple[Dim, ...], shape: tuple[int, ...], rows: int) -> bool:
    if len(shape) != len(wanted):
        return False
    # A plain loop: three of these are half of what checking a small request against a spec costs.
    for axis in range(len(wanted)):
        dim, size = wanted[axis], shape[axis]
        if isinstance(dim, str):
            if dim == "rows" and size != rows:
                return False
        elif size != dim:
            return False
    return True
