"""The Open Inference Protocol's bodies over HTTP <-> requests and responses.

    {"id": "7", "inputs": [{"name": "x", "shape": [2, 1], "datatype": "FP32", "data": [1, 2]}],
     "outputs": [{"name": "y", "parameters": {"binary_data": true}}]}

The values of any tensor may follow the JSON instead: binary tensor extension, ``oip_binary``; or be
in shared memory: ``oip_shared``. JSON has no NaN or infinity: refused in requests, ``null`` in
answers; in binary they pass as bits.
Unknown fields and parameters are left alone, since clients send some of their own.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from scheduler.errors import Code, ServingError, invalid
from scheduler.errors import shown as quoted
from scheduler.types import InferRequest, InferResponse, ModelSpec
from transports.codecs.oip_binary import Tail, joined, only_input
from transports.codecs.oip_json import data_of, tensor_from_data
from transports.codecs.oip_request import decode
from transports.codecs.oip_shared import (
    NONE,
    REGION,
    Place,
    SharedInputs,
    SharedMemory,
    check_room,
    write_outputs,
)
from transports.codecs.oip_tensors import (
    Tensor,
    check_echoed,
    priority_and_timeout_s,
    routing_key,
    tensor_from_raw,
    tensors_of,
)
from transports.codecs.strict_json import parse_object, shown

T = TypeVar("T")

_REQUEST = "request"
_UNSUPPORTED = "classification"
_WORDS: dict[type, str] = {
    str: "a string", list: "a list", dict: "an object", bool: "true or false", int: "an integer",
}  # fmt: skip
# No model has more tensors, and each costs some microseconds before it can be told to be unknown.
MAX_TENSORS = 4096


@dataclass(frozen=True, slots=True)
class Asked:
    """How an answer is to look: the id and the parameters, if any, and which outputs are binary.

    ``places`` are those of outputs that go to shared memory.
    """

    id: str | None = None
    parameters: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    all_binary: bool = False
    binary: Mapping[str, bool] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)

    def is_binary(self, output: str) -> bool:
        """Return whether ``output`` follows the JSON."""
        return output not in self.places and self.binary.get(output, self.all_binary)


def decode_request(
    body: bytes, json_bytes: int | None, spec: ModelSpec, memory: SharedMemory = NONE
) -> tuple[InferRequest, Asked]:
    """Return the request in ``body``, and how to answer it.

    ``json_bytes`` is how much of the body is JSON, None for all of it; 0 means that the body is
    the only input's bytes and that the answer is binary too. Tensors may be in ``memory``.
    Raises ServingError (INVALID_REQUEST, PAYLOAD_TOO_LARGE, UNSUPPORTED) naming the field.
    """
    if json_bytes == 0:
        return decode(spec, [only_input(body, spec)], ()), Asked(all_binary=True)
    head = memoryview(body)[:json_bytes]
    if json_bytes is not None and json_bytes > len(head):
        raise invalid(
            f"inference-header-content-length is {json_bytes}, but the body has {len(body)} bytes"
        )
    document = parse_object(head)
    parameters = _parameters(document, _REQUEST)
    _check_plain(parameters)
    asked = _asked(document, parameters, memory)
    check_echoed(asked.id or "", len(parameters))
    tail, shared = Tail(memoryview(body)[len(head) :]), SharedInputs(memory)
    inputs = [_input(entry, tail, shared) for entry in _entries(document, "inputs")]
    tail.check_empty()
    request = decode(spec, inputs, asked.outputs)
    check_room(spec, request.rows, asked.places)
    priority, timeout_s = priority_and_timeout_s(parameters, spec)
    named = dataclasses.replace(
        request,
        id=asked.id or "",
        priority=priority,
        timeout_s=timeout_s,
        key=routing_key(parameters),
    )
    return named, asked


def encode_response(response: InferResponse, asked: Asked) -> tuple[int | None, bytes]:
    """Return how much of the answer is JSON, None for all of it, and the answer.

    Raises ServingError if an output's place in shared memory cannot be written to.
    """
    tensors = tensors_of(response, asked.outputs)
    write_outputs(tensors, asked.places)
    document: dict[str, Any] = {
        "model_name": response.model,
        "model_version": response.version,
        "outputs": [_output(tensor, asked) for tensor in tensors],
    }
    if asked.id is not None:
        document["id"] = asked.id
    if asked.parameters:
        document["parameters"] = asked.parameters
    head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    binary = [tensor for tensor in tensors if asked.is_binary(tensor.name)]
    return (len(head), joined(head, binary)) if binary else (None, head)


def _asked(document: dict[str, Any], parameters: dict[str, Any], memory: SharedMemory) -> Asked:
    all_binary = _field(parameters, "binary_data_output", bool, _REQUEST, False)
    binary: dict[str, bool] = {}
    places: dict[str, Place] = {}
    for entry in _entries(document, "outputs", []):
        name = _field(entry, "name", str, "an output")
        where = f"output {quoted(name)}"
        if name in binary:
            raise invalid(f"{where}: asked for twice")
        own = _parameters(entry, where)
        binary[name] = _field(own, "binary_data", bool, where, all_binary)
        if REGION in own:
            places[name] = memory.place(where, own)
    given_id = _field(document, "id", str, _REQUEST) if "id" in document else None
    return Asked(given_id, parameters, tuple(binary), all_binary, binary, places)


def _input(entry: dict[str, Any], tail: Tail, shared: SharedInputs) -> Tensor:
    name, datatype, shape = map(entry.get, ("name", "datatype", "shape"))
    # At once for what is right, as there may be a hundred; what is wrong is found out after.
    if type(name) is not str or type(datatype) is not str or type(shape) is not list:
        name = _field(entry, "name", str, "an input")
        where = f"tensor {quoted(name)}"
        datatype, shape = _field(entry, "datatype", str, where), _field(entry, "shape", list, where)
    where = f"tensor {name!r}" if len(name) <= 64 else f"tensor {quoted(name)}"
    if [*map(type, shape)].count(int) != len(shape):
        raise invalid(f"{where}: shape has an entry that is no integer")
    parameters = _parameters(entry, where)
    if REGION in parameters:
        tensor = shared.read(name, datatype, shape, parameters)
        _check_alone(entry, parameters, where)
        return tensor
    if "binary_data_size" not in parameters:
        return tensor_from_data(name, datatype, shape, _field(entry, "data", list, where))
    if "data" in entry:
        raise invalid(f"{where}: has both data and binary_data_size")
    size_bytes = _field(parameters, "binary_data_size", int, where)
    return tensor_from_raw(name, datatype, shape, tail.take(name, size_bytes))


def _check_alone(entry: dict[str, Any], parameters: dict[str, Any], where: str) -> None:
    for other in ("data", "binary_data_size"):
        if other in entry or other in parameters:
            raise invalid(f"{where}: has both {other} and {REGION}")


def _output(tensor: Tensor, asked: Asked) -> dict[str, Any]:
    described = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    place = asked.places.get(tensor.name)
    if place is not None:
        return {**described, "parameters": place.parameters(tensor.array.nbytes)}
    if asked.is_binary(tensor.name):
        return {**described, "parameters": {"binary_data_size": tensor.array.nbytes}}
    return {**described, "data": data_of(tensor)}


def _entries(
    document: dict[str, Any], field_name: str, otherwise: list[Any] | None = None
) -> list[dict[str, Any]]:
    entries: list[Any] = _field(document, field_name, list, _REQUEST, otherwise)
    if len(entries) > MAX_TENSORS:
        raise invalid(
            f"request: {field_name} has {len(entries)} entries, above the limit of {MAX_TENSORS}"
        )
    for entry in entries:
        if type(entry) is not dict:
            raise invalid(f"request: {field_name} has {shown(entry)}, expected objects")
    return entries


def _parameters(holder: dict[str, Any], where: str) -> dict[str, Any]:
    parameters: dict[str, Any] = _field(holder, "parameters", dict, where, {})
    if _UNSUPPORTED in parameters:
        raise ServingError(Code.UNSUPPORTED, f"{where}: parameter {_UNSUPPORTED} is not supported")
    return parameters


def _check_plain(parameters: dict[str, Any]) -> None:
    for name, value in parameters.items():
        if type(value) in {list, dict}:
            raise invalid(
                f"{_REQUEST}: parameter {quoted(name)} is {shown(value)},"
                " expected a string, a number, true or false"
            )


def _field(
    holder: dict[str, Any], name: str, kind: type[T], where: str, otherwise: T | None = None
) -> T:
    value = holder.get(name, otherwise)
    if type(value) is not kind:  # not isinstance: True is no integer here
        found = shown(value) if name in holder else "missing"
        raise invalid(f"{where}: {name} is {found}, expected {_WORDS[kind]}")
    return value
