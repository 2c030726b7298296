"""Bodies of the wires: tensors in, scores out."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import orjson
from google.protobuf.message import DecodeError

from scheduler.types import Array
from transports.codecs.oip_tensors import datatype_of
from transports.codecs.predictor_client import decode_response, encode_request
from transports.proto import open_inference_pb2

Encoding = Literal["json", "protobuf", "oip"]
DENSE, LENGTHS, VALUES = "float_features", "id_list_features.lengths", "id_list_features.values"


def encode(
    encoding: Encoding, model: str, features: Sequence[str], inputs: Mapping[str, Array]
) -> bytes:
    """Return a request's body; ``inputs`` is TorchRec's layout."""
    if encoding == "protobuf":
        return encode_request(len(inputs[DENSE]), inputs)
    if encoding == "oip":
        return _encode_oip(model, inputs)
    bags = {
        feature: _bags(lengths, values)
        for feature, lengths, values in zip(
            features, inputs[LENGTHS], _by_feature(inputs), strict=True
        )
    }
    document = {"float_features": inputs[DENSE], "id_list_features": bags}
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def decode(encoding: Encoding, body: bytes) -> dict[str, Array]:
    """Return the scores in an answer by output name, (rows,) float32. Raises ValueError."""
    try:
        if encoding == "protobuf":
            return decode_response(body)
        if encoding == "oip":
            return _decode_oip(body)
        predictions = orjson.loads(body)["predictions"]
        return {name: np.array(scores, np.float32) for name, scores in predictions.items()}
    except (DecodeError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not an answer: {error}") from error


def _by_feature(inputs: Mapping[str, Array]) -> list[Array]:
    ends = np.cumsum(inputs[LENGTHS].sum(axis=1))
    return np.split(inputs[VALUES], ends[:-1])


def _bags(lengths: Array, values: Array) -> list[list[int]]:
    ends = np.cumsum(lengths).tolist()
    numbers = values.tolist()
    return [numbers[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _encode_oip(model: str, inputs: Mapping[str, Array]) -> bytes:
    message = open_inference_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        message.inputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    return bytes(message.SerializeToString())


def _decode_oip(body: bytes) -> dict[str, Array]:
    message = open_inference_pb2.ModelInferResponse.FromString(body)
    contents = zip(message.outputs, message.raw_output_contents, strict=True)
    return {output.name: np.frombuffer(raw, np.float32) for output, raw in contents}
