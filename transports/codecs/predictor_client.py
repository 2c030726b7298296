"""The client's side of predictor.proto: requests out, scores in."""

from collections.abc import Mapping

import numpy as np

from scheduler.types import Array
from transports.proto import predictor_pb2


def encode_request(rows: int, inputs: Mapping[str, Array]) -> bytes:
    """Return a PredictionRequest of ``rows`` rows.

    ``inputs`` is TorchRec's layout: ``float_features`` (rows, features) float32, and
    ``id_list_features.lengths`` (features, rows) and ``.values`` (ids,), int32 or int64 alike.
    """
    dense = inputs["float_features"]
    lengths = inputs["id_list_features.lengths"]
    return predictor_pb2.PredictionRequest(
        batch_size=rows,
        float_features=predictor_pb2.FloatFeatures(
            num_features=dense.shape[1], values=dense.tobytes()
        ),
        id_list_features=predictor_pb2.SparseFeatures(
            num_features=len(lengths),
            lengths=lengths.tobytes(),
            values=inputs["id_list_features.values"].tobytes(),
        ),
    ).SerializeToString()


def decode_response(body: bytes) -> dict[str, Array]:
    """Return the scores by output name, (rows,) float32 each. Raises DecodeError."""
    response = predictor_pb2.PredictionResponse.FromString(body)
    return {
        name: np.array(scores.data, np.float32) for name, scores in response.predictions.items()
    }
