"""TorchRec's ``predictor`` protobuf <-> requests and responses.

The wire's arrays become read-only views of the parsed message. What the model takes is not known
here: only what the bytes contradict by themselves is refused. Messages with no features are left
out, since TorchRec's own client sends the unused ones that way. NaN and infinity pass as bits.
"""

import functools
from typing import NamedTuple

import numpy as np

from scheduler.errors import ServingError, invalid
from scheduler.types import Array, InferRequest, InferResponse
from transports.codecs.predictor_fields import FLOAT_FIELDS, SPARSE_FIELDS, Features, fields_of

# Fields of the answer, each of them length-delimited: the map's entries with their key and value,
# a FloatVec, whose floats are packed. (https://protobuf.dev/programming-guides/encoding/)
_PREDICTIONS, _KEY, _VALUE, _DATA = 1, 1, 2, 1
_LENGTH_DELIMITED = 2
# Up to so many numbers Python adds up faster than NumPy, whose calls cost 2 to 4 us however few.
_FEW = 64
_FLOAT = np.dtype("<f4")


class _Names(NamedTuple):
    """What the inputs of a field are called."""

    lengths: str
    values: str
    weights: str


_NAMES = {
    field: _Names(f"{field}.lengths", f"{field}.values", f"{field}.weights")
    for field in SPARSE_FIELDS
}
_FLOAT32, _INT32, _INT64 = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.int64)


def decode_request(body: bytes, model: str) -> InferRequest:
    """Return the PredictionRequest in ``body``; ids and lengths keep their width (int32 or int64).

    ``float_features`` is (rows, D) float32, ``id_list_features.lengths`` (T, rows) and
    ``id_list_features.values`` flat, key-major.
    Raises ServingError (INVALID_REQUEST).
    """
    rows, features = fields_of(body)
    if rows < 0:
        raise invalid(f"batch_size is {rows}, expected 0 or more")
    inputs: dict[str, Array] = {}
    for field in FLOAT_FIELDS:
        if field in features:
            _add_floats(inputs, field, features[field], rows)
    for field in SPARSE_FIELDS:
        if field in features:
            _add_sparse(inputs, field, features[field], rows)
    return InferRequest(model=model, rows=rows, inputs=inputs)


def encode_response(response: InferResponse) -> bytes:
    """Return a PredictionResponse with every output, flattened, as float32.

    Written by hand: protobuf's own way is over a list of Python numbers.
    """
    parts: list[bytes | memoryview] = []
    for name, array in response.outputs.items():
        scores = np.ascontiguousarray(array, _FLOAT).data
        parts += (_before(name, scores.nbytes), scores)
    return b"".join(parts)


@functools.lru_cache(maxsize=1024)
def _before(name: str, size_bytes: int) -> bytes:
    """Return what goes before ``size_bytes`` of floats, the prediction called ``name``."""
    data = _head(_DATA, size_bytes) if size_bytes else b""
    value = _head(_VALUE, len(data) + size_bytes) + data
    key = _head(_KEY, len(name.encode())) + name.encode()
    return _head(_PREDICTIONS, len(key) + len(value) + size_bytes) + key + value


def _head(number: int, size_bytes: int) -> bytes:
    """Return a field's tag and the length of what it holds."""
    head = bytearray((number << 3 | _LENGTH_DELIMITED,))
    while size_bytes > 127:
        head.append(size_bytes & 127 | 128)
        size_bytes >>= 7
    head.append(size_bytes)
    return bytes(head)


def _add_floats(inputs: dict[str, Array], field: str, features: Features, rows: int) -> None:
    number, (values,) = features
    if number < 1:
        _check_absent(field, number, {"values": values})
        return
    # Python integers: two int32 from the wire multiply past any machine word safely.
    expected = rows * number * 4
    if len(values) != expected:
        raise invalid(
            f"{field}.values has {len(values)} bytes, expected {expected}: batch_size {rows} x "
            f"num_features {number} x 4 (float32)"
        )
    inputs[field] = np.frombuffer(values, _FLOAT32).reshape(rows, number)


def _add_sparse(inputs: dict[str, Array], field: str, features: Features, rows: int) -> None:
    number, (lengths_data, values, weights) = features
    if number < 1:  # TorchRec's client sends those it has no use for, empty
        parts = {"lengths": lengths_data, "values": values, "weights": weights}
        _check_absent(field, number, parts)
        return
    names = _NAMES[field]
    lengths = _integers(lengths_data, number * rows)
    if lengths is None:
        origin = f"num_features {number} x batch_size {rows}"
        raise _misfit(names.lengths, lengths_data, number * rows, origin)
    total = _exact_sum(names.lengths, lengths)
    ids = _integers(values, total)
    if ids is None:
        raise _misfit(names.values, values, total, "the sum of lengths")
    inputs[names.lengths] = lengths.reshape(number, rows)
    inputs[names.values] = ids
    if weights:
        if len(weights) != total * 4:
            raise invalid(
                f"{field}.weights has {len(weights)} bytes, expected {total * 4}: "
                f"the sum of lengths {total} x 4 (float32)"
            )
        inputs[names.weights] = np.frombuffer(weights, _FLOAT32)


def _check_absent(field: str, features: int, parts: dict[str, bytes]) -> None:
    """Refuse a message without features that contradicts itself. Raises ServingError."""
    if features < 0:
        raise invalid(f"{field}.num_features is {features}, expected 0 or more")
    for part, data in parts.items():
        if data:
            raise invalid(f"{field}.num_features is 0 but {part} has {len(data)} bytes")


def _integers(data: bytes, entries: int) -> Array | None:
    """View ``data`` as ``entries`` int32 or int64, whichever its size says; None if neither."""
    if len(data) == entries * 4:
        return np.frombuffer(data, _INT32)
    if len(data) == entries * 8:
        return np.frombuffer(data, _INT64)
    return None


def _misfit(name: str, data: bytes, entries: int, origin: str) -> ServingError:
    return invalid(
        f"{name} has {len(data)} bytes, expected {entries * 4} (int32) or {entries * 8} (int64): "
        f"{entries} entries, {origin}"
    )


def _exact_sum(name: str, lengths: Array) -> int:
    """Sum without wrapping: int64 lengths may add up past 2^63, and a wrapped sum may fit.

    Raises ServingError for a negative length: the sum, which sizes the values, would mean nothing.
    """
    if 0 < lengths.size <= _FEW:
        numbers = lengths.tolist()
        if min(numbers) >= 0:
            return sum(numbers)
    # As unsigned, a negative number is beyond every positive one: one look finds both.
    unsigned = lengths.view(np.uint32 if lengths.itemsize == 4 else np.uint64)
    most = int(np.maximum.reduce(unsigned, initial=0))
    if most >> (8 * lengths.itemsize - 1):
        entry = int(lengths.argmin())
        raise invalid(f"{name}: entry {entry} has length {lengths[entry]}; lengths are at least 0")
    if most * lengths.size < 1 << 63:
        return int(np.add.reduce(lengths, dtype=np.int64))
    high, low = np.divmod(lengths, 1 << 32)
    return (int(high.sum()) << 32) + int(low.sum())
