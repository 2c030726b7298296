"""The Open Inference Protocol over gRPC with tensors in shared memory, one request at a time."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.shared_memory import SharedMemory

import grpc
import numpy as np
import numpy.typing as npt

from scheduler.types import Array
from transports.codecs.oip_shared import OFFSET, REGION, SIZE
from transports.codecs.oip_tensors import datatype_of
from transports.proto.open_inference_pb2 import (
    InferParameter,
    ModelInferRequest,
    SystemSharedMemoryRegisterRequest,
)

Inputs = Mapping[str, Array]
Ask = Callable[[Inputs], Array]

# What the names of objects begin with that the server may open.
PREFIX = "narsil-lab-"
_SERVICE = "/inference.GRPCInferenceService"
_REGION = "lab"


@contextlib.contextmanager
def shared(channel: grpc.Channel, size_bytes: int) -> Iterator[Ask]:
    """Register memory of so many bytes with the server; yield what asks through it."""
    memory = SharedMemory(f"{PREFIX}{os.getpid()}", create=True, size=size_bytes)
    try:
        register = channel.unary_unary(f"{_SERVICE}/SystemSharedMemoryRegister")
        register(
            SystemSharedMemoryRegisterRequest(
                name=_REGION, key=memory.name, byte_size=size_bytes
            ).SerializeToString()
        )
        infer = channel.unary_unary(f"{_SERVICE}/ModelInfer")

        def ask(inputs: Inputs) -> Array:
            content = np.frombuffer(memory.buf or b"", np.uint8)  # held longer it cannot be closed
            body, where = _body(inputs, content)
            infer(body)
            return content[where].view(np.float32).copy()

        yield ask
    finally:
        memory.close()
        memory.unlink()


def _body(inputs: Inputs, content: npt.NDArray[np.uint8]) -> tuple[bytes, slice]:
    """Put the tensors into memory; return the message, and where its scores will be."""
    message = ModelInferRequest(model_name="fake")
    end = 0
    for name, array in inputs.items():
        tensor = message.inputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
        place = slice(end, end + array.nbytes)
        content[place] = array.reshape(-1).view(np.uint8)
        _set(tensor.parameters, place)
        end = -(-place.stop // 64) * 64
    place = slice(end, end + 4 * len(inputs["float_features"]))
    _set(message.outputs.add(name="default").parameters, place)
    return message.SerializeToString(), place


def _set(parameters: Mapping[str, InferParameter], place: slice) -> None:
    parameters[REGION].string_param = _REGION
    parameters[OFFSET].int64_param = place.start
    parameters[SIZE].int64_param = place.stop - place.start
