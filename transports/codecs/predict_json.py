"""The JSON of ``/v1/.../predict`` <-> requests and responses.

Row-wise, one list per row and bag, or columnar (told by ``rows``), flat lists:

    {"float_features": [[0.1, ...], ...], "id_list_features": {"cat_0": [[3], [17, 4]], ...}}
    {"rows": 2, "float_features": [0.1, ...],
     "id_list_features": {"cat_0": {"lengths": [1, 2], "values": [3, 17, 4]}, ...}}

Both may carry a ``context`` that every row shares (``json_context``), ``id``, ``outputs``,
``timeout_ms`` and ``priority`` (0 is served first). JSON has no NaN or infinity: refused in
requests, ``null`` in answers.
"""

import math
from typing import Any

import numpy as np
import orjson

from scheduler.errors import invalid
from scheduler.types import InferRequest, InferResponse, ModelSpec
from transports.codecs import json_columns, json_context, json_rows
from transports.codecs.json_values import DENSE, SPARSE, check_tensor_fields
from transports.codecs.strict_json import parse_object, shown

_FIELDS = frozenset(
    {DENSE, SPARSE, "rows", json_context.FIELD, "id", "outputs", "timeout_ms", "priority"}
)


def decode_request(body: bytes | bytearray | memoryview, spec: ModelSpec) -> InferRequest:
    """Return the request in ``body``, key-major, in the feature order of ``spec``.

    Raises ServingError (INVALID_REQUEST) whose detail names the field, the limit and the value.
    """
    document = parse_object(body)
    _check_known(document)
    decode = json_columns.decode if "rows" in document else json_rows.decode
    if json_context.FIELD in document:
        rows, inputs, shared = json_context.decode(document, spec, decode)
    else:
        check_tensor_fields(document, spec)
        (rows, inputs), shared = decode(document, spec), None
    return InferRequest(
        model=spec.name,
        rows=rows,
        inputs=inputs,
        id=_text(document, "id"),
        timeout_s=_timeout_s(document),
        outputs=_outputs(document),
        priority=_priority(document),
        shared=shared,
    )


def encode_response(response: InferResponse) -> bytes:
    """Return the answer as JSON; NaN and infinity are written as ``null``."""
    predictions = {name: np.ascontiguousarray(array) for name, array in response.outputs.items()}
    answer = {"model": response.model, "version": response.version, "predictions": predictions}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _check_known(document: dict[str, Any]) -> None:
    for field in document:
        if field not in _FIELDS:
            raise invalid(f"unknown field {shown(field)}, expected {', '.join(sorted(_FIELDS))}")


def _text(document: dict[str, Any], field: str) -> str:
    value = document.get(field, "")
    if type(value) is not str:
        raise invalid(f"{field} is {shown(value)}, expected a string")
    return value


def _timeout_s(document: dict[str, Any]) -> float:
    if "timeout_ms" not in document:
        return math.inf
    value = document["timeout_ms"]
    if type(value) not in {int, float} or value <= 0:
        raise invalid(f"timeout_ms is {shown(value)}, expected a number over 0")
    return float(value) / 1000


def _priority(document: dict[str, Any]) -> int:
    value = document.get("priority", 0)
    if type(value) is not int or value < 0:
        raise invalid(f"priority is {shown(value)}, expected an integer of 0 or more")
    return value


def _outputs(document: dict[str, Any]) -> tuple[str, ...]:
    values = document.get("outputs", [])
    if type(values) is not list:
        raise invalid(f"outputs is {shown(values)}, expected a list of names")
    for value in values:
        if type(value) is not str:
            raise invalid(f"outputs has {shown(value)}, expected a name")
    return tuple(values)
