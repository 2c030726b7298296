"""The Open Inference Protocol's tensors -> a request."""

from collections.abc import Sequence

from scheduler.errors import invalid, shown
from scheduler.types import Array, InferRequest, ModelSpec
from transports.codecs.oip_context import read_request
from transports.codecs.oip_tensors import BYTES, Tensor
from transports.codecs.oip_texts import ids_of_texts


def decode(spec: ModelSpec, tensors: Sequence[Tensor], outputs: Sequence[str]) -> InferRequest:
    """Return the request for the model of ``spec``, ids key-major however they were written.

    A context is in every row of it. ``version``, ``id``, ``timeout_s`` and ``priority`` are left
    to the caller. What the model itself rules out is refused where every request is checked, in
    the scheduler.
    Raises ServingError (INVALID_REQUEST, PAYLOAD_TOO_LARGE) naming the tensor.
    """
    arrays: dict[str, Array] = {}
    for tensor in tensors:
        if tensor.name in arrays:
            raise invalid(f"tensor {shown(tensor.name)}: given twice")
        is_text = tensor.datatype == BYTES
        arrays[tensor.name] = ids_of_texts(spec, tensor) if is_text else tensor.array
    if len(set(outputs)) < len(outputs):
        twice = next(name for name in outputs if outputs.count(name) > 1)
        raise invalid(f"output {shown(twice)}: asked for twice")
    rows, inputs, shared = read_request(spec, arrays)
    return InferRequest(spec.name, rows, inputs, outputs=tuple(outputs), shared=shared)
