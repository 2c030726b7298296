"""One request in each protocol's bytes, and what the server reads it with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import orjson

from scheduler.types import Array, InferRequest, ModelSpec
from transports.codecs import oip_http, oip_protobuf, predict_json
from transports.codecs.oip_tensors import datatype_of
from transports.proto.open_inference_pb2 import ModelInferRequest

DENSE, LENGTHS, VALUES = "float_features", "id_list_features.lengths", "id_list_features.values"
Tensors = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Body:
    """The bytes of a request, and what the server makes a request of them with.

    ``path`` and ``headers`` are those of HTTP; what goes over gRPC has no path.
    """

    content: bytes
    decode: Callable[[], InferRequest]
    path: str = ""
    headers: str = ""


def bags(tensors: Tensors, labels: tuple[str, ...]) -> dict[str, tuple[Array, Array]]:
    """Return lengths and ids by feature."""
    ends = np.cumsum(tensors[LENGTHS].sum(axis=1))[:-1]
    columns = zip(tensors[LENGTHS], np.split(tensors[VALUES], ends), strict=True)
    return dict(zip(labels, columns, strict=True))


def pairs(tensors: Tensors, labels: tuple[str, ...]) -> dict[str, Array]:
    """Return one pair of lengths and ids a feature, beside the dense features."""
    tensors_by_name = {DENSE: tensors[DENSE]}
    for label, (lengths, ids) in bags(tensors, labels).items():
        tensors_by_name |= {f"{label}.lengths": lengths, f"{label}.values": ids}
    return tensors_by_name


Layout = Callable[[Tensors, tuple[str, ...]], dict[str, Any]]


def row_wise(tensors: Tensors, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON with a list a row and a list a bag."""
    lists = {
        label: [ids.tolist() for ids in np.split(values, np.cumsum(lengths)[:-1])]
        for label, (lengths, values) in bags(tensors, labels).items()
    }
    return {DENSE: tensors[DENSE], "id_list_features": lists}


def columnar(tensors: Tensors, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON of flat lists."""
    flat = {
        label: {"lengths": lengths, "values": values}
        for label, (lengths, values) in bags(tensors, labels).items()
    }
    dense = tensors[DENSE]
    return {"rows": len(dense), DENSE: dense.ravel(), "id_list_features": flat}


def json_body(document: dict[str, Any], spec: ModelSpec) -> Body:
    """Return ``document`` for the predict route."""
    content = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    decode = partial(predict_json.decode_request, content, spec)
    return Body(content, decode, "/v1/predict", "content-type: application/json\r\n")


def binary_body(tensors: Tensors, spec: ModelSpec) -> Body:
    """Return ``tensors`` as OIP over HTTP has them, the bytes behind the JSON."""
    inputs = [
        {
            "name": name,
            "datatype": datatype_of(array.dtype),
            "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in tensors.items()
    ]
    head = orjson.dumps({"inputs": inputs})
    content = head + b"".join(array.tobytes() for array in tensors.values())
    return Body(
        content,
        lambda: oip_http.decode_request(content, len(head), spec)[0],
        f"/v2/models/{spec.name}/infer",
        f"inference-header-content-length: {len(head)}\r\n",
    )


def protobuf_body(tensors: Tensors, spec: ModelSpec) -> Body:
    """Return ``tensors`` as OIP over gRPC has them, raw."""
    message = ModelInferRequest(model_name=spec.name)
    for name, array in tensors.items():
        message.inputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    content = message.SerializeToString()
    return Body(
        content, lambda: oip_protobuf.decode_request(oip_protobuf.parse_request(content), spec)
    )
