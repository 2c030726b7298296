"""One ranking request in each protocol's bytes: spelled out, and with a context given once."""

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
class Shape:
    """What the context has: the leading columns and features, the first of them long bags."""

    dense: int = 8
    features: int = 16
    histories: int = 4
    history_ids: int = 50


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """One request in TorchRec's tensors: the context, the candidates, and both spelled out."""

    spec: ModelSpec
    rows: int
    shape: Shape
    context: Tensors
    candidates: Tensors
    whole: Tensors


@dataclass(frozen=True, slots=True)
class Body:
    """The bytes of a request, and what the server makes a request of them with.

    ``path`` and ``headers`` are those of HTTP; what goes over gRPC has no path.
    """

    content: bytes
    decode: Callable[[], InferRequest]
    path: str = ""
    headers: str = ""


def draw_parts(spec: ModelSpec, rows: int, shape: Shape, seed: int) -> Parts:
    """Return a random request: one id a bag but for the histories, int32 ids under 100,000."""
    rng = np.random.default_rng(seed)
    labels = _labels(spec)
    sizes = [shape.history_ids] * shape.histories + [1] * (shape.features - shape.histories)
    lengths = np.array(sizes, np.int32)[:, None]
    shared = rng.integers(0, 100_000, lengths.sum(), np.int32)
    left = len(labels) - shape.features
    own = rng.integers(0, 100_000, left * rows, np.int32)
    dense = rng.standard_normal((1, 13), np.float32)
    own_dense = rng.standard_normal((rows, 13 - shape.dense), np.float32)
    own_lengths = np.ones((left, rows), np.int32)
    bags = np.split(shared, np.cumsum(sizes)[:-1])
    context = {DENSE: dense[:, : shape.dense], LENGTHS: lengths, VALUES: shared}
    whole = {
        DENSE: np.hstack([np.tile(context[DENSE], (rows, 1)), own_dense]),
        LENGTHS: np.vstack([np.tile(lengths, rows), own_lengths]),
        VALUES: np.concatenate([*(np.tile(bag, rows) for bag in bags), own]),
    }
    candidates = {DENSE: own_dense, LENGTHS: own_lengths, VALUES: own}
    return Parts(spec, rows, shape, context, candidates, whole)


def bodies(parts: Parts) -> dict[str, tuple[Body, Body]]:
    """Return each form of the request: spelled out, and with a context."""
    labels, count = _labels(parts.spec), parts.shape.features
    user = _renamed(parts.context)
    user_pairs = _renamed(_pairs(parts.context, labels[:count]))
    own_pairs = _pairs(parts.candidates, labels[count:])
    whole_pairs = _pairs(parts.whole, labels)
    ways = {
        "TorchRec's tensors": (parts.whole, {**user, **parts.candidates}),
        "pairs": (whole_pairs, {**user_pairs, **own_pairs}),
    }
    forms = {
        "JSON, row-wise": _documents(parts, _row_wise),
        "JSON, columnar": _documents(parts, _columnar),
    }
    for name, (spelled_out, with_context) in ways.items():
        forms[f"OIP binary, {name}"] = (
            _binary(spelled_out, parts.spec), _binary(with_context, parts.spec)
        )  # fmt: skip
        forms[f"OIP gRPC, {name}"] = (
            _protobuf(spelled_out, parts.spec), _protobuf(with_context, parts.spec)
        )  # fmt: skip
    return forms


def _labels(spec: ModelSpec) -> tuple[str, ...]:
    lengths = spec.input(LENGTHS)
    return lengths.labels if lengths else ()


def _renamed(tensors: Tensors) -> dict[str, Array]:
    return {f"context.{name}": array for name, array in tensors.items()}


def _bags(tensors: Tensors, labels: tuple[str, ...]) -> dict[str, tuple[Array, Array]]:
    """Return lengths and ids by feature."""
    ends = np.cumsum(tensors[LENGTHS].sum(axis=1))[:-1]
    columns = zip(tensors[LENGTHS], np.split(tensors[VALUES], ends), strict=True)
    return dict(zip(labels, columns, strict=True))


def _pairs(tensors: Tensors, labels: tuple[str, ...]) -> dict[str, Array]:
    pairs = {DENSE: tensors[DENSE]}
    for label, (lengths, ids) in _bags(tensors, labels).items():
        pairs |= {f"{label}.lengths": lengths, f"{label}.values": ids}
    return pairs


Layout = Callable[[Tensors, tuple[str, ...]], dict[str, Any]]


def _row_wise(tensors: Tensors, labels: tuple[str, ...]) -> dict[str, Any]:
    bags = {
        label: [ids.tolist() for ids in np.split(values, np.cumsum(lengths)[:-1])]
        for label, (lengths, values) in _bags(tensors, labels).items()
    }
    return {DENSE: tensors[DENSE], "id_list_features": bags}


def _columnar(tensors: Tensors, labels: tuple[str, ...]) -> dict[str, Any]:
    bags = {
        label: {"lengths": lengths, "values": values}
        for label, (lengths, values) in _bags(tensors, labels).items()
    }
    dense = tensors[DENSE]
    return {"rows": len(dense), DENSE: dense.ravel(), "id_list_features": bags}


def _documents(parts: Parts, layout: Layout) -> tuple[Body, Body]:
    labels, count = _labels(parts.spec), parts.shape.features
    bags = {label: ids for label, (_, ids) in _bags(parts.context, labels[:count]).items()}
    context = {DENSE: parts.context[DENSE][0].copy(), "id_list_features": bags}
    with_context = {"context": context, **layout(parts.candidates, labels[count:])}
    return _json(layout(parts.whole, labels), parts.spec), _json(with_context, parts.spec)


def _json(document: dict[str, Any], spec: ModelSpec) -> Body:
    content = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    decode = partial(predict_json.decode_request, content, spec)
    return Body(content, decode, "/v1/predict", "content-type: application/json\r\n")


def _binary(tensors: Tensors, spec: ModelSpec) -> Body:
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


def _protobuf(tensors: Tensors, spec: ModelSpec) -> Body:
    message = ModelInferRequest(model_name=spec.name)
    for name, array in tensors.items():
        message.inputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    content = message.SerializeToString()
    return Body(
        content, lambda: oip_protobuf.decode_request(oip_protobuf.parse_request(content), spec)
    )
