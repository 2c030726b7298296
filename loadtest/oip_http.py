"""Bodies of the Open Inference Protocol over HTTP, with tensors as JSON or as bytes."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from scheduler.types import Array
from transports.codecs.oip_tensors import datatype_of

# Every request's JSON is filled up to so much, so that one header says how long it is.
HEAD_BYTES = 2048


def encode_json(inputs: Mapping[str, Array]) -> bytes:
    """Return a body that is JSON altogether."""
    tensors = [
        _described(name, array) | {"data": np.ascontiguousarray(array).reshape(-1)}
        for name, array in inputs.items()
    ]
    return orjson.dumps({"inputs": tensors}, option=orjson.OPT_SERIALIZE_NUMPY)


def encode_binary(inputs: Mapping[str, Array]) -> bytes:
    """Return ``HEAD_BYTES`` of JSON and the tensors' bytes; asks for the answer's as well.

    Raises ValueError if the JSON is longer.
    """
    tensors = [
        _described(name, array) | {"parameters": {"binary_data_size": array.nbytes}}
        for name, array in inputs.items()
    ]
    document = {"inputs": tensors, "parameters": {"binary_data_output": True}}
    head = orjson.dumps(document).ljust(HEAD_BYTES)
    if len(head) > HEAD_BYTES:
        raise ValueError(f"the JSON of the inputs is over {HEAD_BYTES} bytes")
    return b"".join([head, *(array.tobytes() for array in inputs.values())])


def decode(body: bytes) -> dict[str, Array]:
    """Return the outputs in either kind of answer, FP32. Raises ValueError or LookupError."""
    # One character a byte: where the JSON ends, the bytes of its tensors begin.
    document, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    outputs: dict[str, Array] = {}
    for output in document["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            outputs[output["name"]] = np.array(output["data"], np.float32)
        else:
            outputs[output["name"]] = np.frombuffer(body[end : end + size], np.float32)
            end += size
    return outputs


def _described(name: str, array: Array) -> dict[str, Any]:
    return {"name": name, "shape": array.shape, "datatype": datatype_of(array.dtype)}
