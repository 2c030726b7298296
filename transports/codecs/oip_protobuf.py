"""The Open Inference Protocol's protobuf <-> requests and responses.

Tensors come as raw bytes, which become read-only views of the parsed message, or as typed entries;
answers are raw. Tensors in shared memory and classification are not served.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from google.protobuf.message import DecodeError

from scheduler.errors import Code, ServingError, invalid, shown
from scheduler.types import InferRequest, InferResponse, ModelSpec
from transports.codecs.oip_request import decode
from transports.codecs.oip_tensors import (
    BYTES,
    Tensor,
    check_echoed,
    priority_and_timeout_s,
    routing_key,
    tensor_dtype,
    tensor_from_raw,
    tensor_from_texts,
    tensor_from_values,
    tensors_of,
)
from transports.codecs.protobuf_bounds import check_bounds
from transports.proto.open_inference_pb2 import (
    InferParameter,
    ModelInferRequest,
    ModelInferResponse,
)

# The field of InferTensorContents that holds the entries of each datatype.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
# No model has more tensors, and each costs some microseconds before it can be told to be unknown.
MAX_TENSORS = 4096
# All but raw tensors: parsing it costs about 0.1 s a MiB at worst, on the event loop.
MAX_TYPED_BYTES = 1 << 20
_RAW_FIELD = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_UNSERVED = ("shared_memory_region", "classification")


def parse_request(body: bytes) -> ModelInferRequest:
    """Return the message in ``body``, which names the model. Raises ServingError."""
    check_bounds(body, _RAW_FIELD, max_fields=3 * MAX_TENSORS, max_bytes=MAX_TYPED_BYTES)
    try:
        return ModelInferRequest.FromString(body)
    except DecodeError as error:
        raise invalid(f"message is not an inference.ModelInferRequest: {error}") from error


def decode_request(message: ModelInferRequest, spec: ModelSpec) -> InferRequest:
    """Return the request of ``message`` for the model of ``spec``.

    Raises ServingError (INVALID_REQUEST; UNSUPPORTED for what other servers do).
    """
    _check_number("inputs", len(message.inputs))
    _check_number("outputs", len(message.outputs))
    for tensor in message.inputs:
        if tensor.parameters:
            _check_served(tensor.name, tensor.parameters)
    for output in message.outputs:
        if output.parameters:
            _check_served(output.name, output.parameters)
    check_echoed(message.id, len(message.parameters))
    parameters = _plain(message.parameters)
    priority, timeout_s = priority_and_timeout_s(parameters, spec)
    request = decode(spec, list(_tensors(message)), [output.name for output in message.outputs])
    return dataclasses.replace(
        request,
        id=message.id,
        timeout_s=timeout_s,
        priority=priority,
        version=message.model_version,
        key=routing_key(parameters),
    )


def encode_response(response: InferResponse, asked: ModelInferRequest) -> ModelInferResponse:
    """Return the answer to ``asked``, with its id and parameters and the outputs in its order."""
    message = ModelInferResponse(
        model_name=response.model, model_version=response.version, id=asked.id
    )
    message.parameters.MergeFrom(asked.parameters)
    for tensor in tensors_of(response, [output.name for output in asked.outputs]):
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_output_contents.append(tensor.array.tobytes())
    return message


def _tensors(message: ModelInferRequest) -> Iterator[Tensor]:
    inputs = message.inputs
    raw = message.raw_input_contents
    if raw and len(raw) != len(inputs):
        raise invalid(
            f"raw_input_contents has {len(raw)} entries, expected one for each of the"
            f" {len(inputs)} inputs"
        )
    # Contents that are set but empty say nothing: some clients always set them.
    typed = [tensor for tensor in inputs if tensor.HasField("contents")] if raw else []
    for tensor in typed:
        if tensor.contents.ListFields():
            raise invalid(
                f"tensor {shown(tensor.name)}: has contents beside raw_input_contents,"
                " expected one of them"
            )
    if raw:
        for tensor, data in zip(inputs, raw, strict=True):
            yield tensor_from_raw(tensor.name, tensor.datatype, tuple(tensor.shape), data)
    else:
        for tensor in inputs:
            yield _typed(tensor)


def _typed(tensor: ModelInferRequest.InferInputTensor) -> Tensor:
    label, datatype = f"tensor {shown(tensor.name)}", tensor.datatype
    field = _CONTENTS.get(datatype)
    if field != _CONTENTS[BYTES]:
        dtype = tensor_dtype(tensor.name, datatype)
    if field is None:
        raise invalid(f"{label}: {datatype} has no typed contents, send raw_input_contents")
    for other, _ in tensor.contents.ListFields():
        if other.name != field:
            raise invalid(f"{label}: {datatype} is expected in {field}, got {other.name}")
    entries = getattr(tensor.contents, field)
    if datatype == BYTES:
        return tensor_from_texts(tensor.name, tuple(tensor.shape), list(entries))
    try:
        values = np.fromiter(entries, dtype, len(entries))
    except OverflowError as error:
        raise invalid(f"{label}: {error}") from error
    return tensor_from_values(tensor.name, datatype, tuple(tensor.shape), values)


def _plain(parameters: Mapping[str, InferParameter]) -> dict[str, bool | int | float | str]:
    """Return the parameters that say something, as plain values."""
    plain = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is not None:
            plain[name] = getattr(parameter, choice)
    return plain


def _check_number(field: str, entries: int) -> None:
    if entries > MAX_TENSORS:
        raise invalid(f"{field} has {entries} entries, above the limit of {MAX_TENSORS}")


def _check_served(name: str, parameters: Iterable[str]) -> None:
    for parameter in _UNSERVED:
        if parameter in parameters:
            raise ServingError(
                Code.UNSUPPORTED, f"tensor {shown(name)}: {parameter} is not supported"
            )
