"""The same requests with their tensors in the message and in shared memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from loadtest.lab.wire_servers import SHAPE
from loadtest.workload import draw
from scheduler.types import Array
from transports.codecs.oip_shared import OFFSET, REGION, SIZE
from transports.codecs.oip_tensors import datatype_of
from transports.proto.open_inference_pb2 import ModelInferRequest

REGION_NAME = "lab"
Tensors = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Form:
    """One way to ask: protocol and bodies, and HTTP's headers."""

    scheme: str
    path: str
    bodies: Sequence[bytes]
    headers: Mapping[str, str]


def forms(rows: int, count: int, memory: memoryview) -> dict[str, Form]:
    """Return the same ``count`` requests in every form; ``memory`` is filled with their tensors."""
    rng = np.random.default_rng(rows)
    requests = [draw(SHAPE, rows, rng) for _ in range(count)]
    placed = list(_fill(memory, requests, 4 * rows))
    binary = [_http(tensors) for tensors in requests]
    head_bytes = {"inference-header-content-length": f"{binary[0][0]}"}
    http, grpc = "/v2/models/fake/infer", "/inference.GRPCInferenceService/ModelInfer"
    pairs = list(zip(requests, placed, strict=True))
    return {
        "HTTP, binary": Form("http", http, [body for _, body in binary], head_bytes),
        "HTTP, shared memory": Form("http", http, [_http(*pair)[1] for pair in pairs], {}),
        "gRPC, raw": Form("grpc", grpc, [_grpc(tensors) for tensors in requests], {}),
        "gRPC, shared memory": Form("grpc", grpc, [_grpc(*pair) for pair in pairs], {}),
    }


def _fill(
    memory: memoryview, requests: Sequence[Tensors], answer_bytes: int
) -> Iterator[dict[str, int]]:
    """Put the tensors one after another; yield where each is, "" being where its answer goes."""
    end = 0
    for tensors in requests:
        places = {}
        for name, array in tensors.items():
            places[name], data = end, array.tobytes()
            memory[end : end + len(data)] = data
            end += len(data)
        places[""], end = end, end + answer_bytes
        yield places


def _at(offset: int, size_bytes: int) -> dict[str, str | int]:
    return {REGION: REGION_NAME, OFFSET: offset, SIZE: size_bytes}


def _http(tensors: Tensors, places: Mapping[str, int] | None = None) -> tuple[int, bytes]:
    """Return how much of the body is JSON, and the body."""
    inputs = [
        {
            "name": name, "datatype": datatype_of(array.dtype), "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes} if places is None
            else _at(places[name], array.nbytes),
        }
        for name, array in tensors.items()
    ]  # fmt: skip
    own = {"binary_data": True} if places is None else _at(places[""], _answer_bytes(tensors))
    outputs = [{"name": "default", "parameters": own}]
    head = orjson.dumps({"inputs": inputs, "outputs": outputs})
    return len(head), head + (
        b"".join(each.tobytes() for each in tensors.values()) if places is None else b""
    )


def _grpc(tensors: Tensors, places: Mapping[str, int] | None = None) -> bytes:
    message = ModelInferRequest(model_name="fake")
    for name, array in tensors.items():
        tensor = message.inputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
        if places is None:
            message.raw_input_contents.append(array.tobytes())
        else:
            _set(tensor, _at(places[name], array.nbytes))
    output = message.outputs.add(name="default")
    if places is not None:
        _set(output, _at(places[""], _answer_bytes(tensors)))
    return message.SerializeToString()


def _set(
    tensor: ModelInferRequest.InferInputTensor | ModelInferRequest.InferRequestedOutputTensor,
    where: Mapping[str, str | int],
) -> None:
    for name, value in where.items():
        if isinstance(value, str):
            tensor.parameters[name].string_param = value
        else:
            tensor.parameters[name].int64_param = value


def _answer_bytes(tensors: Tensors) -> int:
    return 4 * len(tensors["float_features"])
