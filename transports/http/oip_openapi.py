"""Describe the infer routes in OpenAPI; FastAPI cannot, since it does not serve them."""

import math

from scheduler.types import ModelSpec
from transports.codecs.oip_tensors import TensorInfo, dtype_of, input_infos
from transports.http.head import JSON
from transports.http.oip import BINARY
from transports.http.openapi import Schema, failures, header_parameters, path_parameter

_TEXT: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer"}


def infer_paths(specs: tuple[ModelSpec, ...]) -> Schema:
    """Return the path items, with an example that the first of ``specs`` really answers."""
    example = {"id": "1", "inputs": [_example(info) for info in _infos(specs)]}
    model = path_parameter("model", specs[0].name if specs else "dlrm")
    version = path_parameter("version", specs[0].version if specs else "1")
    return {
        "/v2/models/{model}/infer": {"post": _operation("infer_model", example, [model])},
        "/v2/models/{model}/versions/{version}/infer": {
            "post": _operation("infer_version", example, [model, version])
        },
    }


def _infos(specs: tuple[ModelSpec, ...]) -> tuple[TensorInfo, ...]:
    return input_infos(specs[0]) if specs else ()


def _operation(name: str, example: Schema, parameters: list[Schema]) -> Schema:
    return {
        "tags": ["open inference protocol"],
        "summary": "Score rows",
        "operationId": name,
        "parameters": [*parameters, _json_bytes(), *header_parameters()],
        "requestBody": {"required": True, "content": _request_content(example)},
        "responses": {"200": _success(), **failures()},
    }


def _json_bytes() -> Schema:
    return {
        "name": "inference-header-content-length",
        "in": "header",
        "description": "Bytes of JSON before the binary tensors; absent if all of the body is "
        "JSON, 0 if none of it is",
        "schema": {"type": "integer", "minimum": 0},
    }


def _request_content(example: Schema) -> Schema:
    body = {
        "type": "object",
        "properties": {
            "id": _TEXT,
            "parameters": {
                "type": "object",
                "description": "`priority` (1 is served first), `timeout` (microseconds), "
                "`binary_data_output`; others are echoed",
            },
            "inputs": {"type": "array", "items": _tensor()},
            "outputs": {"type": "array", "items": _requested_output()},
        },
        "required": ["inputs"],
    }
    return {
        JSON: {"schema": body, "example": example},
        BINARY: {"schema": {**_TEXT, "format": "binary"}},
    }


def _tensor() -> Schema:
    values = {"type": "array", "description": "flat and row-major, or nested as `shape` says"}
    return {
        "type": "object",
        "properties": {
            "name": _TEXT,
            "shape": {"type": "array", "items": _INTEGER},
            "datatype": _TEXT,
            "parameters": {"type": "object", "properties": {"binary_data_size": _INTEGER}},
            "data": values,
        },
        "required": ["name", "shape", "datatype"],
    }


def _requested_output() -> Schema:
    flag = {"type": "object", "properties": {"binary_data": {"type": "boolean"}}}
    return {
        "type": "object",
        "properties": {"name": _TEXT, "parameters": flag},
        "required": ["name"],
    }


def _success() -> Schema:
    scores = {
        "type": "object",
        "properties": {
            "model_name": _TEXT,
            "model_version": _TEXT,
            "id": _TEXT,
            "parameters": {"type": "object"},
            "outputs": {"type": "array", "items": _tensor()},
        },
    }
    return {
        "description": "Scores, one or more per row and output; binary ones follow the JSON",
        "content": {
            JSON: {"schema": scores},
            BINARY: {"schema": {**_TEXT, "format": "binary"}},
        },
    }


def _example(info: TensorInfo) -> Schema:
    """One row: a half for every number, id 1 for every id."""
    shape = [1 if size == -1 else size for size in info.shape]
    entry = 0.5 if dtype_of(info.datatype).kind == "f" else 1
    return {
        "name": info.name,
        "shape": shape,
        "datatype": info.datatype,
        "data": [entry] * math.prod(shape),
    }
