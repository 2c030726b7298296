"""Check a request against its model's spec: names, dtypes and shapes. Backends check the rest."""

import numpy as np

from scheduler.errors import invalid, shown
from scheduler.types import Array, InferRequest, ModelSpec, TensorSpec


def validate(spec: ModelSpec, request: InferRequest, priorities: int = 1) -> None:
    """Refuse a request that ``spec`` rules out, naming the field, the limit and the value.

    Raises ServingError with INVALID_REQUEST.
    """
    if request.rows < 0:
        raise invalid(f"rows: must be at least 0, got {request.rows}")
    check_rows(request.rows, spec)
    if not request.timeout_s > 0:
        raise invalid(f"timeout: must be above 0 s, got {request.timeout_s:g} s")
    if not 0 <= request.priority < priorities:
        raise invalid(f"priority: must be 0 to {priorities - 1}, got {request.priority}")
    _check_names("input", [tensor.name for tensor in spec.inputs], list(request.inputs))
    for tensor in spec.inputs:
        array = request.inputs.get(tensor.name)
        if array is not None:
            _check_tensor(tensor, array, request.rows)
        elif not tensor.optional:
            raise invalid(f"{tensor.name}: missing; model {spec.name!r} needs it")
    _check_names("output", [tensor.name for tensor in spec.outputs], list(request.outputs))


def check_rows(rows: int, spec: ModelSpec) -> None:
    """Refuse more rows than a request may have; codecs ask before they spend time on the values.

    Raises ServingError with INVALID_REQUEST.
    """
    limit = spec.max_request_rows or spec.max_batch_rows
    if rows > limit:
        raise invalid(f"rows: {rows} exceed the limit of {limit} rows (max_request_rows)")


def _check_names(kind: str, known: list[str], given: list[str]) -> None:
    for name in given:
        if name not in known:
            raise invalid(f"no {kind} {shown(name)}; the model has {', '.join(known)}")


def _check_tensor(spec: TensorSpec, array: Array, rows: int) -> None:
    # Same kind as well as a safe cast: numpy calls bool -> int64 safe, and True is not an id.
    if array.dtype.kind != spec.dtype.kind or not np.can_cast(array.dtype, spec.dtype, "safe"):
        raise invalid(f"{spec.name}: expected {spec.dtype}, got {array.dtype}")
    fits = len(array.shape) == len(spec.shape) and all(
        dim == "*" or size == (rows if dim == "rows" else dim)
        for dim, size in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join(f"rows={rows}" if dim == "rows" else str(dim) for dim in spec.shape)
        raise invalid(f"{spec.name}: expected shape [{wanted}], got {list(array.shape)}")
