"""Describe the predict routes in OpenAPI; FastAPI cannot, since it does not serve them."""

from typing import Any

from scheduler.types import ModelSpec
from transports.http.head import JSON, PROTOBUF
from transports.http.problem import MEDIA_TYPE

Schema = dict[str, Any]

_NUMBERS: Schema = {"type": "array", "items": {"type": "number"}}
_IDS: Schema = {"type": "array", "items": {"type": "integer"}}
_ERRORS = {
    "400": "The request can never succeed as it stands; `detail` names the field and the value",
    "404": "No such model",
    "408": "The body did not arrive in time",
    "413": "The body is over `max_request_bytes`, or `max_json_bytes` as JSON",
    "415": "A content type or a content coding that is not supported",
    "429": "The queue is full, or the memory for bodies (`max_buffered_bytes`)",
    "500": "An error of the server's; its log has the cause",
    "501": "A part of the protocol that is not served here, or not allowed",
    "503": "Not ready yet, or stopping",
    "504": "The request's own deadline passed",
}


def predict_paths(specs: tuple[ModelSpec, ...]) -> Schema:
    """Return the path items, with an example that the first of ``specs`` really answers."""
    example = _example(specs[0]) if specs else {}
    model = path_parameter("model", specs[0].name if specs else "dlrm")
    version = path_parameter("version", specs[0].version if specs else "1")
    return {
        "/v1/predict": {"post": _operation("Score rows with the only model", example, [])},
        "/v1/models/{model}/predict": {
            "post": _operation("Score rows with one model", example, [model])
        },
        "/v1/models/{model}/versions/{version}/predict": {
            "post": _operation("Score rows with a version or label", example, [model, version])
        },
    }


def with_refusals(schema: Schema) -> Schema:
    """Return FastAPI's ``schema`` with our errors in the place of its own, which never come."""
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    for never in ("HTTPValidationError", "ValidationError"):
        schemas.pop(never, None)
    schemas["Problem"] = problem_schema()
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            operation["responses"].pop("422", None)
            operation["responses"] |= failures(*_statuses(path, method))
    return schema


def _statuses(path: str, method: str) -> list[str]:
    statuses = ["500", "503"]
    if "{model}" in path:
        statuses.append("404")
    if "sharedmemory" in path:  # a region that nobody has; memory that is not served
        statuses += ["400", "501"]
    if method == "post":
        statuses += ["400", "408", "413", "501"]
    return sorted(set(statuses))


def path_parameter(name: str, example: str) -> Schema:
    """Return a part of a path."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string"},
        "example": example,
    }


def problem_schema() -> Schema:
    """Return the schema of every error body."""
    text = {"type": "string"}
    fields = dict.fromkeys(("type", "title", "detail", "instance", "error"), text)
    return {
        "type": "object",
        "description": "RFC 9457 and Open Inference Protocol at once: `error` repeats `detail`",
        "properties": {**fields, "status": {"type": "integer"}},
        "required": [*fields, "status"],
    }


def _operation(summary: str, example: Schema, parameters: list[Schema]) -> Schema:
    name = "_".join(["predict", *(one["name"] for one in parameters)])
    return {
        "tags": ["predict"],
        "summary": summary,
        "operationId": name,
        "parameters": [*parameters, *header_parameters()],
        "requestBody": {"required": True, "content": _request_content(example)},
        "responses": {"200": _success(), **failures()},
    }


def header_parameters() -> list[Schema]:
    """Return the headers that every inference request may have."""
    return [
        {
            "name": "x-request-id",
            "in": "header",
            "description": "Echoed in the answer and in the log; made up when absent",
            "schema": {"type": "string", "maxLength": 128},
        },
        {
            "name": "x-request-timeout-ms",
            "in": "header",
            "description": "Milliseconds after which the answer is of no use",
            "schema": {"type": "number", "exclusiveMinimum": 0},
        },
        {
            "name": "x-request-priority",
            "in": "header",
            "description": "Class to be served in, 0 the first; the body's own comes before it",
            "schema": {"type": "integer", "minimum": 0},
        },
        {
            "name": "x-request-key",
            "in": "header",
            "description": "Decides which version answers, where several share the requests",
            "schema": {"type": "string", "maxLength": 1024},
        },
    ]


def _request_content(example: Schema) -> Schema:
    return {
        JSON: {"schema": {"oneOf": [_row_wise(), _columnar()]}, "example": example},
        PROTOBUF: {
            "schema": {"type": "string", "format": "binary"},
            "example": "a serialized predictor.PredictionRequest (predictor.proto)",
        },
    }


def _row_wise() -> Schema:
    bags = {"type": "array", "items": _IDS, "description": "one list of ids per row"}
    return _request_schema(
        "Row-wise: one list per row",
        {
            "float_features": {"type": "array", "items": _NUMBERS},
            "id_list_features": {"type": "object", "additionalProperties": bags},
        },
    )


def _columnar() -> Schema:
    bag = {"type": "object", "properties": {"lengths": _IDS, "values": _IDS}}
    schema = _request_schema(
        "Columnar: flat arrays, quicker to parse",
        {
            "rows": {"type": "integer", "minimum": 0},
            "float_features": _NUMBERS,
            "id_list_features": {"type": "object", "additionalProperties": bag},
        },
    )
    return {**schema, "required": ["rows"]}


def _request_schema(title: str, properties: Schema) -> Schema:
    common = {
        "context": _context(),
        "id": {"type": "string"},
        "timeout_ms": {"type": "number", "exclusiveMinimum": 0},
        "priority": {"type": "integer", "minimum": 0},
        "outputs": {"type": "array", "items": {"type": "string"}},
    }
    return {"type": "object", "title": title, "properties": {**properties, **common}}


def _context() -> Schema:
    return {
        "type": "object",
        "description": "What all rows share, given once: the rows have the other columns and"
        " features, in the model's order",
        "properties": {
            "float_features": _NUMBERS,
            "float_columns": {**_IDS, "description": "which columns; absent: the leading ones"},
            "id_list_features": {"type": "object", "additionalProperties": _IDS},
        },
    }


def _success() -> Schema:
    scores = {
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "version": {"type": "string"},
            "predictions": {"type": "object", "additionalProperties": _NUMBERS},
        },
    }
    return {
        "description": "Scores, one per row and output, in the media type of the request",
        "content": {
            JSON: {"schema": scores},
            PROTOBUF: {"schema": {"type": "string", "format": "binary"}},
        },
    }


def failures(*statuses: str) -> Schema:
    """Return the answers with ``statuses`` that are problems; by default those of inference."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": description, "content": content}
        for status, description in _ERRORS.items()
        if not statuses or status in statuses
    }


def _example(spec: ModelSpec) -> Schema:
    """One row: a half for every dense feature, id 1 for every id feature."""
    example: Schema = {}
    dense = spec.input("float_features")
    if dense is not None:
        example["float_features"] = [[0.5] * int(dense.shape[-1])]
    ids = spec.input("id_list_features.lengths")
    if ids is not None:
        example["id_list_features"] = {label: [[1]] for label in ids.labels}
    return example
