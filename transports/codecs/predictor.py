"""TorchRec's ``predictor`` protobuf <-> requests and responses.

The wire's arrays become read-only views of the parsed message. What the model takes is not known
here: only what the bytes contradict by themselves is refused. Messages with no features are left
out, since TorchRec's own client sends the unused ones that way. NaN and infinity pass as bits.
"""

from collections.abc import Iterator

import numpy as np
from google.protobuf.message import DecodeError

from scheduler.errors import invalid
from scheduler.types import Array, InferRequest, InferResponse
from transports.proto import predictor_pb2

_FLOAT_FIELDS = ("float_features", "embedding_features")
_SPARSE_FIELDS = ("id_list_features", "id_score_list_features", "unary_features")


def decode_request(body: bytes, model: str) -> InferRequest:
    """Return the PredictionRequest in ``body``; ids and lengths keep their width (int32 or int64).

    ``float_features`` is (rows, D) float32, ``id_list_features.lengths`` (T, rows) and
    ``id_list_features.values`` flat, key-major.
    Raises ServingError (INVALID_REQUEST).
    """
    message = predictor_pb2.PredictionRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise invalid(f"body is not a predictor.PredictionRequest: {error}") from error
    rows = message.batch_size
    if rows < 0:
        raise invalid(f"batch_size is {rows}, expected 0 or more")
    inputs: dict[str, Array] = {}
    for field in _FLOAT_FIELDS:
        if message.HasField(field):
            inputs.update(_floats(field, getattr(message, field), rows))
    for field in _SPARSE_FIELDS:
        if message.HasField(field):
            inputs.update(_sparse(field, getattr(message, field), rows))
    return InferRequest(model=model, rows=rows, inputs=inputs)


def encode_response(response: InferResponse) -> bytes:
    """Return a PredictionResponse with every output, flattened, as float32.

    Written by hand, as protobuf takes floats as Python's only, one by one: a map is a field of
    entries with key 1 and value 2, and a FloatVec's numbers are one packed field.
    """
    parts: list[bytes | memoryview] = []
    for name, array in response.outputs.items():
        scores = np.ascontiguousarray(array, "<f4").reshape(-1)
        packed = _head(1, scores.nbytes) if scores.size else b""
        label = _head(1, len(name.encode())) + name.encode()
        vector = _head(2, len(packed) + scores.nbytes) + packed
        entry = _head(1, len(label) + len(vector) + scores.nbytes)
        parts += (entry, label, vector, scores.data)
    return b"".join(parts)


def _head(number: int, size: int) -> bytes:
    """Return what comes before a protobuf field of ``size`` bytes."""
    head = bytearray((number << 3 | 2,))
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head)


def _floats(
    field: str, message: predictor_pb2.FloatFeatures, rows: int
) -> Iterator[tuple[str, Array]]:
    values = message.values
    if _absent(field, message.num_features, {"values": values}):
        return
    # Python integers: two int32 from the wire multiply past any machine word safely.
    expected = rows * message.num_features * 4
    if len(values) != expected:
        raise invalid(
            f"{field}.values has {len(values)} bytes, expected {expected}: batch_size {rows} x "
            f"num_features {message.num_features} x 4 (float32)"
        )
    yield field, np.frombuffer(values, np.float32).reshape(rows, message.num_features)


def _sparse(
    field: str, message: predictor_pb2.SparseFeatures, rows: int
) -> Iterator[tuple[str, Array]]:
    features = message.num_features
    # Each read of a bytes field copies it: read once.
    lengths_data, values, weights = message.lengths, message.values, message.weights
    parts = {"lengths": lengths_data, "values": values, "weights": weights}
    if _absent(field, features, parts):
        return
    origin = f"num_features {features} x batch_size {rows}"
    lengths = _integers(f"{field}.lengths", lengths_data, features * rows, origin)
    if lengths.min(initial=0) < 0:  # their sum, which sizes the values, would mean nothing
        entry = int(lengths.argmin())
        raise invalid(
            f"{field}.lengths: entry {entry} has length {lengths[entry]}; lengths are at least 0"
        )
    total = _exact_sum(lengths)
    yield f"{field}.lengths", lengths.reshape(features, rows)
    yield f"{field}.values", _integers(f"{field}.values", values, total, "the sum of lengths")
    if weights:
        if len(weights) != total * 4:
            raise invalid(
                f"{field}.weights has {len(weights)} bytes, expected {total * 4}: "
                f"the sum of lengths {total} x 4 (float32)"
            )
        yield f"{field}.weights", np.frombuffer(weights, np.float32)


def _absent(field: str, features: int, parts: dict[str, bytes]) -> bool:
    """Return whether the message holds nothing. Raises ServingError when it contradicts itself."""
    if features < 0:
        raise invalid(f"{field}.num_features is {features}, expected 0 or more")
    if features:
        return False
    for part, data in parts.items():
        if data:
            raise invalid(f"{field}.num_features is 0 but {part} has {len(data)} bytes")
    return True


def _integers(name: str, data: bytes, entries: int, origin: str) -> Array:
    """View ``data`` as ``entries`` int32 or int64, whichever its size says."""
    for dtype in (np.dtype(np.int32), np.dtype(np.int64)):
        if len(data) == entries * dtype.itemsize:
            return np.frombuffer(data, dtype)
    raise invalid(
        f"{name} has {len(data)} bytes, expected {entries * 4} (int32) or {entries * 8} (int64): "
        f"{entries} entries, {origin}"
    )


def _exact_sum(lengths: Array) -> int:
    """Sum without wrapping: int64 lengths may add up past 2^63, and a wrapped sum may fit."""
    if int(lengths.max(initial=0)) * lengths.size < 1 << 63:
        return int(lengths.sum(dtype=np.int64))
    high, low = np.divmod(lengths, 1 << 32)
    return (int(high.sum()) << 32) + int(low.sum())
