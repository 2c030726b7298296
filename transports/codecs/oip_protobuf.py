"""The Open Inference Protocol's protobuf <-> requests and responses.

Tensors come as raw bytes, which become read-only views of the parsed message, or as typed entries;
answers are raw. Tensors may be in shared memory, ``oip_shared``. Classification is not served.
"""

import dataclasses
from collections.abc import Iterable, Mapping, MutableMapping, Sequence

import numpy as np
from google.protobuf.message import DecodeError

from scheduler.errors import Code, ServingError, invalid, shown
from scheduler.types import InferRequest, InferResponse, ModelSpec
from transports.codecs.oip_request import decode
from transports.codecs.oip_shared import (
    NONE,
    REGION,
    Places,
    SharedInputs,
    SharedMemory,
    write_outputs,
)
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
_UNSERVED = "classification"
_NOWHERE: Places = {}


def parse_request(body: bytes) -> ModelInferRequest:
    """Return the message in ``body``, which names the model. Raises ServingError."""
    check_bounds(body, _RAW_FIELD, max_fields=3 * MAX_TENSORS, max_bytes=MAX_TYPED_BYTES)
    try:
        return ModelInferRequest.FromString(body)
    except DecodeError as error:
        raise invalid(f"message is not an inference.ModelInferRequest: {error}") from error


def decode_request(
    message: ModelInferRequest, spec: ModelSpec, memory: SharedMemory = NONE
) -> InferRequest:
    """Return the request of ``message`` for the model of ``spec``; inputs may be in ``memory``.

    Raises ServingError (INVALID_REQUEST; PAYLOAD_TOO_LARGE; UNSUPPORTED for what other servers do).
    """
    _check_number("inputs", len(message.inputs))
    _check_number("outputs", len(message.outputs))
    told = [tensor for tensor in message.inputs if tensor.parameters]
    for tensor in told:
        _check_served(tensor.name, tensor.parameters)
    for output in message.outputs:
        if output.parameters:
            _check_served(output.name, output.parameters)
    check_echoed(message.id, len(message.parameters))
    parameters = _plain(message.parameters)
    priority, timeout_s = priority_and_timeout_s(parameters, spec)
    if any(REGION in tensor.parameters for tensor in told):
        tensors = _some_elsewhere(message, SharedInputs(memory))
    else:
        tensors = _contained(message.inputs, message.raw_input_contents)
    request = decode(spec, tensors, [output.name for output in message.outputs])
    return dataclasses.replace(
        request,
        id=message.id,
        timeout_s=timeout_s,
        priority=priority,
        version=message.model_version,
        key=routing_key(parameters),
    )


def output_places(message: ModelInferRequest, memory: SharedMemory) -> Places:
    """Return where the outputs go that ``message`` wants in ``memory``. Raises ServingError."""
    return {
        output.name: memory.place(f"output {shown(output.name)}", _plain(output.parameters))
        for output in message.outputs
        if REGION in output.parameters
    }


def encode_response(
    response: InferResponse, asked: ModelInferRequest, places: Places = _NOWHERE
) -> ModelInferResponse:
    """Return the answer to ``asked``, with its id and parameters and the outputs in its order.

    Raises ServingError if one of ``places`` cannot be written to.
    """
    message = ModelInferResponse(
        model_name=response.model, model_version=response.version, id=asked.id
    )
    message.parameters.MergeFrom(asked.parameters)
    tensors = tensors_of(response, [output.name for output in asked.outputs])
    write_outputs(tensors, places)
    for tensor in tensors:
        output = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        place = places.get(tensor.name)
        if place is not None:
            _set(output.parameters, place.parameters(tensor.array.nbytes))
        # Clients find the bytes of an output by its number, so that there is always an entry.
        message.raw_output_contents.append(b"" if place else tensor.array.tobytes())
    return message


def _some_elsewhere(message: ModelInferRequest, shared: SharedInputs) -> list[Tensor]:
    """Return the inputs; of those in shared memory the message has no contents."""
    elsewhere = [tensor for tensor in message.inputs if REGION in tensor.parameters]
    here = [tensor for tensor in message.inputs if REGION not in tensor.parameters]
    tensors = [_shared(tensor, shared) for tensor in elsewhere]
    return tensors + _contained(here, message.raw_input_contents)


def _shared(tensor: ModelInferRequest.InferInputTensor, shared: SharedInputs) -> Tensor:
    where = f"tensor {shown(tensor.name)}"
    if tensor.HasField("contents") and tensor.contents.ListFields():
        raise invalid(f"{where}: has contents beside {REGION}, expected one of them")
    parameters = _plain(tensor.parameters)
    return shared.read(tensor.name, tensor.datatype, tuple(tensor.shape), parameters)


def _contained(
    inputs: Sequence[ModelInferRequest.InferInputTensor], raw: Sequence[bytes]
) -> list[Tensor]:
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
    if not raw:
        return [_typed(tensor) for tensor in inputs]
    return [
        tensor_from_raw(tensor.name, tensor.datatype, tuple(tensor.shape), data)
        for tensor, data in zip(inputs, raw, strict=True)
    ]


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


def _set(parameters: MutableMapping[str, InferParameter], plain: Mapping[str, str | int]) -> None:
    for name, value in plain.items():
        if isinstance(value, str):
            parameters[name].string_param = value
        else:
            parameters[name].int64_param = value


def _check_number(field: str, entries: int) -> None:
    if entries > MAX_TENSORS:
        raise invalid(f"{field} has {entries} entries, above the limit of {MAX_TENSORS}")


def _check_served(name: str, parameters: Iterable[str]) -> None:
    if _UNSERVED in parameters:
        raise ServingError(Code.UNSUPPORTED, f"tensor {shown(name)}: {_UNSERVED} is not supported")
