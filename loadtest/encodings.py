"""Bodies of the wires: tensors in, scores out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import orjson
from google.protobuf.message import DecodeError

from loadtest import oip_http
from scheduler.types import Array
from transports.codecs.oip_tensors import datatype_of
from transports.codecs.predictor_client import decode_response, encode_request
from transports.proto import open_inference_pb2

Encoding = Literal["json", "protobuf", "oip", "oip-json", "oip-binary"]
DENSE, LENGTHS, VALUES = "float_features", "id_list_features.lengths", "id_list_features.values"


@dataclass(frozen=True, slots=True)
class Context:
    """The user's part of a ranking request: so many leading dense columns and id features."""

    columns: int = 0
    features: int = 0


NO_CONTEXT = Context()


def encode(
    encoding: Encoding,
    model: str,
    features: Sequence[str],
    inputs: Mapping[str, Array],
    context: Context = NO_CONTEXT,
) -> bytes:
    """Return a request's body; ``inputs`` is TorchRec's layout, any ``context`` spelled out.

    Raises ValueError for a context in predictor.proto, which has no words for it.
    """
    if encoding == "protobuf":
        if context != NO_CONTEXT:
            raise ValueError("predictor.proto knows no context")
        return encode_request(len(inputs[DENSE]), inputs)
    user, own = _parted(inputs, context)
    if encoding in {"oip", "oip-json", "oip-binary"}:
        named = {f"context.{name}": array for name, array in user.items()} | own
        if encoding == "oip":
            return _encode_oip(model, named)
        return (
            oip_http.encode_json(named) if encoding == "oip-json" else oip_http.encode_binary(named)
        )
    document = _document(features[context.features :], own)
    if user:
        once = _document(features[: context.features], user)
        # Of one row: a context is flat.
        document["context"] = {
            **({"float_features": once["float_features"][0]} if DENSE in user else {}),
            "id_list_features": {
                name: bag for name, (bag,) in once.get("id_list_features", {}).items()
            },
        }
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def decode(encoding: Encoding, body: bytes) -> dict[str, Array]:
    """Return the scores in an answer by output name, (rows,) float32. Raises ValueError."""
    try:
        if encoding == "protobuf":
            return decode_response(body)
        if encoding == "oip":
            return _decode_oip(body)
        if encoding != "json":
            return oip_http.decode(body)
        predictions = orjson.loads(body)["predictions"]
        return {name: np.array(scores, np.float32) for name, scores in predictions.items()}
    except (DecodeError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not an answer: {error}") from error


def _parted(
    inputs: Mapping[str, Array], context: Context
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the user's tensors, of one row, and the candidates'."""
    if context == NO_CONTEXT:
        return {}, dict(inputs)
    columns, features = context.columns, context.features
    dense, lengths, bags = inputs[DENSE], inputs[LENGTHS], _by_feature(inputs)
    once = [bag[:length] for bag, length in zip(bags, lengths[:features, 0], strict=False)]
    user = {DENSE: dense[:1, :columns], LENGTHS: lengths[:features, :1], VALUES: _joined(once)}
    rest = _joined(bags[features:])
    own = {DENSE: dense[:, columns:], LENGTHS: lengths[features:], VALUES: rest}
    return _without_empty(user), _without_empty(own)


def _without_empty(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Leave out the tensors of no columns or no features."""
    bare = [name for name in (DENSE,) if not inputs[name].shape[1]]
    bare += [LENGTHS, VALUES] if not len(inputs[LENGTHS]) else []
    return {name: array for name, array in inputs.items() if name not in bare}


def _joined(bags: Sequence[Array]) -> Array:
    return np.concatenate([np.zeros(0, np.int32), *bags])


def _document(features: Sequence[str], inputs: Mapping[str, Array]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if DENSE in inputs:
        document["float_features"] = np.ascontiguousarray(inputs[DENSE])
    if LENGTHS in inputs:
        parts = zip(features, inputs[LENGTHS], _by_feature(inputs), strict=True)
        bags = {feature: _bags(lengths, values) for feature, lengths, values in parts}
        document["id_list_features"] = bags
    return document


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
