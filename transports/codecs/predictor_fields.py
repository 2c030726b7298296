"""The fields of a PredictionRequest as bytes: read by hand as most clients write them, else parsed.

By hand is what protobuf's encoders write: each field once, with a number of one byte. Anything
else, what is broken included, is protobuf's. (https://protobuf.dev/programming-guides/encoding/)
"""

from typing import TypeAlias

from google.protobuf.message import DecodeError

from scheduler.errors import invalid
from transports.proto import predictor_pb2

FLOAT_FIELDS = ("float_features", "embedding_features")
SPARSE_FIELDS = ("id_list_features", "id_score_list_features", "unary_features")
# Tags: a number and how it is encoded, of the request's rows and of what each message begins with.
_BATCH_SIZE, _NUM_FEATURES = 0x08, 0x08
_FLOATS = {0x12: "float_features", 0x2A: "embedding_features"}
_SPARSE = {0x1A: "id_list_features", 0x22: "id_score_list_features", 0x32: "unary_features"}
_MOST_INT32 = 0x7FFFFFFF


# One message of features: their number, and its parts. Of FloatFeatures that is the values alone,
# of SparseFeatures lengths, values and weights.
Features: TypeAlias = tuple[int, list[bytes]]
# A request: its rows, and by field what it has of features.
Fields: TypeAlias = tuple[int, dict[str, Features]]


def fields_of(body: bytes) -> Fields:
    """Return what is in ``body``. Raises ServingError (INVALID_REQUEST)."""
    return read(body) or parse(body)


def parse(body: bytes) -> Fields:
    """Return what protobuf finds in ``body``. Raises ServingError (INVALID_REQUEST)."""
    message = predictor_pb2.PredictionRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise invalid(f"body is not a predictor.PredictionRequest: {error}") from error
    features: dict[str, Features] = {}
    for field in FLOAT_FIELDS:
        if message.HasField(field):
            floats: predictor_pb2.FloatFeatures = getattr(message, field)
            features[field] = (floats.num_features, [floats.values])
    for field in SPARSE_FIELDS:
        if message.HasField(field):
            sparse: predictor_pb2.SparseFeatures = getattr(message, field)
            # Each read of a bytes field copies it: read once.
            parts = [sparse.lengths, sparse.values, sparse.weights]
            features[field] = (sparse.num_features, parts)
    return message.batch_size, features


def read(body: bytes) -> Fields | None:
    """Return what is in ``body``, None if that is better left to protobuf."""
    rows, at, size = 0, 0, len(body)
    seen_rows = False
    features: dict[str, Features] = {}
    while at < size:
        tag = body[at]
        value, at = _number(body, at + 1, size)
        if at < 0:
            return None
        if tag == _BATCH_SIZE:
            if seen_rows:
                return None
            rows, seen_rows = value, True
            continue
        parts = 1 if tag in _FLOATS else 3
        field = _FLOATS.get(tag) or _SPARSE.get(tag)
        if field is None or field in features or at + value > size:
            return None
        own = _features(body, at, at + value, parts)
        if own is None:
            return None
        features[field] = own
        at += value
    return rows, features


def _features(body: bytes, at: int, stop: int, most: int) -> Features | None:
    """Return the message of ``body[at:stop]``, which has so many parts at most."""
    number, last_tag = 0, 0
    parts = [b""] * most
    while at < stop:
        tag = body[at]
        value, at = _number(body, at + 1, stop)
        if at < 0 or tag <= last_tag:  # encoders write them in order: so none comes twice
            return None
        last_tag = tag
        if tag == _NUM_FEATURES:
            number = value
            continue
        place = (tag >> 3) - 2
        if tag & 7 != 2 or not 0 <= place < most or at + value > stop:
            return None
        parts[place] = body[at : at + value]
        at += value
    return number, parts


def _number(body: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return the number at ``at`` and where it ends: -1 if it is cut off, or no small int32."""
    value = shift = 0
    while at < stop and shift < 35:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value, at) if value <= _MOST_INT32 else (0, -1)
        shift += 7
    return 0, -1
