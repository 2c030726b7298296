"""The Open Inference Protocol's tensors, for every wire that has them, and what a model offers.

``oip_request`` makes requests of them; ``oip_ids`` knows the ways to write jagged ids.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from scheduler.errors import ServingError, invalid, shown
from scheduler.often import often_made
from scheduler.types import Array, InferResponse, ModelSpec, TensorSpec
from transports.codecs.oip_context import context_property
from transports.codecs.oip_ids import jagged_ids

_DTYPES: dict[str, np.dtype[np.generic]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
BYTES = "BYTES"
# Of a request; None is JSON's null.
Parameters: TypeAlias = Mapping[str, bool | int | float | str | None]
_DATATYPES = {dtype: datatype for datatype, dtype in _DTYPES.items()}
_REFUSED = {
    "BF16": "send FP16 or FP32 instead",
}
# No model has more, and a product of a million sizes from the wire would take minutes.
_MAX_DIMENSIONS = 8
# What numpy can address, also where another size is 0.
_MAX_BYTES = (1 << 63) - 1

MAX_ID_CHARS = 1024
MAX_PARAMETERS = 256


@often_made(frozen=True, slots=True, eq=False)
class Tensor:
    """One named tensor on the wire; ``array`` has ``shape`` and may view the bytes received.

    That of texts is flat: the bytes themselves, or a text (str or bytes) an entry.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    array: Array


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Describe one tensor in a model's metadata; -1 stands for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def dtype_of(datatype: str) -> np.dtype[np.generic]:
    """Return the little-endian dtype of an OIP ``datatype``. Raises ServingError."""
    dtype = _DTYPES.get(datatype)
    if dtype is None:
        why = _REFUSED.get(datatype, f"known are {', '.join(_DTYPES)}")
        raise invalid(f"datatype {shown(datatype)} is not supported: {why}")
    return dtype


def tensor_dtype(name: str, datatype: str) -> np.dtype[np.generic]:
    """Return the dtype of one tensor of OIP's ``datatype``. Raises ServingError naming it."""
    try:
        return dtype_of(datatype)
    except ServingError as error:
        raise invalid(f"{_label(name)}: {error.detail}") from error


def tensor_bytes(name: str, datatype: str, shape: Sequence[int]) -> int:
    """Return what a tensor takes on the wire, before it is there. Raises ServingError naming it."""
    dtype = tensor_dtype(name, datatype)
    return _entries(name, shape, dtype) * dtype.itemsize


def datatype_of(dtype: np.dtype[np.generic]) -> str:
    """Return the OIP datatype of ``dtype``. Raises KeyError if there is none."""
    return _DATATYPES[dtype.newbyteorder("<")]


def tensor_from_raw(
    name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview
) -> Tensor:
    """View ``data``, bytes little-endian and row-major, as a tensor.

    Raises ServingError (INVALID_REQUEST) naming the tensor, the bytes expected and found.
    """
    if datatype == BYTES:
        _entries(name, shape, _DTYPES["UINT32"])  # each has its length before it
        return Tensor(name, datatype, tuple(shape), np.frombuffer(data, np.uint8))
    dtype = _DTYPES.get(datatype) or tensor_dtype(name, datatype)
    # One look for what is right, as there may be a hundred tensors; the reasons are sought after.
    if len(shape) != 1 or shape[0] * dtype.itemsize != len(data):
        check_raw_size(name, datatype, shape, len(data))
    if dtype.kind == "b":  # numpy takes any byte but 0 and 1 for neither true nor false
        flat: Array = np.frombuffer(data, np.uint8) != 0
    else:
        flat = np.frombuffer(data, dtype)
    # Within a longer message a tensor may begin at any byte.
    aligned = flat if flat.flags.aligned else flat.copy()
    if len(shape) == 1:
        return Tensor(name, datatype, (shape[0],), aligned)
    return Tensor(name, datatype, tuple(shape), aligned.reshape(shape))


def check_raw_size(name: str, datatype: str, shape: Sequence[int], size_bytes: int) -> None:
    """Refuse a number of bytes that is not what the shape says; texts have any.

    Raises ServingError (INVALID_REQUEST) naming the tensor, the bytes expected and found.
    """
    if datatype == BYTES:
        return
    dtype = tensor_dtype(name, datatype)
    expected = _entries(name, shape, dtype) * dtype.itemsize
    if size_bytes != expected:
        raise invalid(
            f"{_label(name)}: has {size_bytes} bytes, expected {expected}:"
            f" shape {list(shape)} of {datatype}"
        )


def tensor_from_values(name: str, datatype: str, shape: Sequence[int], values: Array) -> Tensor:
    """Shape ``values``, flat and row-major, which the wire had one by one.

    Their dtype is that of ``datatype``. Raises ServingError (INVALID_REQUEST) naming the tensor,
    the entries expected and found.
    """
    entries = _entries(name, shape, tensor_dtype(name, datatype))
    if values.size != entries:
        raise invalid(
            f"{_label(name)}: has {values.size} entries, expected {entries}: shape {list(shape)}"
        )
    return Tensor(name, datatype, tuple(shape), values.reshape(shape))


def tensor_from_texts(name: str, shape: Sequence[int], texts: Sequence[str | bytes]) -> Tensor:
    """Return the tensor of ``texts``, flat and row-major. Raises ServingError."""
    _entries(name, shape, _DTYPES["UINT32"])
    entries = np.empty(len(texts), object)
    entries[:] = texts
    return Tensor(name, BYTES, tuple(shape), entries)


def check_echoed(given_id: str, parameters: int) -> None:
    """Refuse an id or parameters so large that echoing them would be the answer.

    Raises ServingError (INVALID_REQUEST).
    """
    if len(given_id) > MAX_ID_CHARS:
        raise invalid(f"id: {len(given_id)} characters, above the limit of {MAX_ID_CHARS}")
    if parameters > MAX_PARAMETERS:
        raise invalid(f"parameters: {parameters} entries, above the limit of {MAX_PARAMETERS}")


def tensors_of(response: InferResponse, outputs: Sequence[str]) -> list[Tensor]:
    """Return the outputs in the order asked for (none: the model's), little-endian, row-major.

    An output of one number a row is (rows, 1), as ``output_infos`` says and Triton's clients
    expect of a model that batches.
    """
    return [_output(name, response.outputs[name]) for name in outputs or response.outputs]


def input_infos(spec: ModelSpec) -> tuple[TensorInfo, ...]:
    """Return the inputs that a tool should generate: one id a feature for a model of jagged ids.

    Every one leads with the rows then, so that tools which know batches only can fill them.
    """
    jagged = jagged_ids(spec)
    hidden = (jagged.lengths.name, jagged.values.name) if jagged else ()
    infos = [_info(tensor) for tensor in spec.inputs if tensor.name not in hidden]
    if jagged:
        shape = (-1, jagged.features)
        infos.append(TensorInfo(jagged.name, datatype_of(jagged.values.dtype), shape))
    return tuple(infos)


def output_infos(spec: ModelSpec) -> tuple[TensorInfo, ...]:
    """Return the outputs as ``tensors_of`` shapes them."""
    return tuple(
        TensorInfo(info.name, info.datatype, (*info.shape, *(1,) * (len(info.shape) == 1)))
        for info in map(_info, spec.outputs)
    )


def optional_inputs(spec: ModelSpec) -> frozenset[str]:
    """Return which of ``input_infos`` a request may leave out."""
    return frozenset(tensor.name for tensor in spec.inputs if tensor.optional)


def max_batch_size(spec: ModelSpec) -> int:
    """Return the rows one request may have, 0 if some input does not lead with them."""
    leading = (info.shape[:1] == (-1,) for info in (*input_infos(spec), *output_infos(spec)))
    return (spec.max_request_rows or spec.max_batch_rows) if all(leading) else 0


def properties(spec: ModelSpec) -> dict[str, str]:
    """Return the model's properties, and how else than by ``input_infos`` to write a request.

    For OIP's ``ModelMetadataResponse.properties``.
    """
    jagged = jagged_ids(spec)
    encodings = {"encodings": jagged.encodings()} if jagged else {}
    return {**spec.properties, **encodings, **context_property(spec)}


def priority_and_timeout_s(parameters: Parameters, spec: ModelSpec) -> tuple[int, float]:
    """Return the priority class (0 first) and the timeout (seconds, inf for none) asked for.

    ``priority`` counts as Triton does: 1 is the first class, 2 the next; 0 is the same as none.
    ``timeout`` is in microseconds, 0 for none. Any other parameter is somebody else's.
    Raises ServingError (INVALID_REQUEST) naming the parameter.
    """
    priority = _whole(parameters, "priority")
    # The scheduler, which writes its options into the properties, would name its own number.
    classes = int(spec.properties.get("scheduler.priorities", "0"))
    if priority > classes > 0:
        raise invalid(f"parameter priority: must be 1 to {classes}, or 0 for none, got {priority}")
    timeout_us = _whole(parameters, "timeout")
    return max(0, priority - 1), timeout_us / 1e6 if timeout_us else math.inf


def routing_key(parameters: Parameters) -> str:
    """Return what decides which version answers, "" for nothing. Raises ServingError."""
    key = parameters.get("routing_key", "")
    if not isinstance(key, str):
        raise invalid(f"parameter routing_key: expected a string, got {key}")
    return key


def _whole(parameters: Parameters, name: str) -> int:
    value = parameters.get(name, 0)
    if type(value) is not int or value < 0:  # True is an int, too
        found = shown(value) if isinstance(value, str) else value
        raise invalid(f"parameter {name}: expected an integer of 0 or more, got {found}")
    return value


def _entries(name: str, shape: Sequence[int], dtype: np.dtype[np.generic]) -> int:
    """Return the product of the sizes, as a Python integer: it cannot overflow."""
    if len(shape) > _MAX_DIMENSIONS:
        raise invalid(
            f"{_label(name)}: has {len(shape)} dimensions, above the limit of {_MAX_DIMENSIONS}"
        )
    if min(shape, default=0) < 0:
        raise invalid(f"{_label(name)}: shape {list(shape)} has a negative size")
    entries = math.prod(shape)
    if (entries or math.prod(filter(None, shape))) * dtype.itemsize > _MAX_BYTES:
        raise invalid(f"{_label(name)}: shape {list(shape)} is larger than any memory")
    return entries


def _label(name: str) -> str:
    return f"tensor {shown(name)}"


def _output(name: str, array: Array) -> Tensor:
    column = array.reshape(-1, 1) if array.ndim == 1 else array
    datatype = datatype_of(array.dtype)
    return Tensor(name, datatype, column.shape, np.ascontiguousarray(column, _DTYPES[datatype]))


def _info(tensor: TensorSpec) -> TensorInfo:
    shape = tuple(-1 if isinstance(size, str) else size for size in tensor.shape)
    return TensorInfo(tensor.name, datatype_of(tensor.dtype), shape)
