"""Requests are read as views and answers written without lists of Python's numbers."""

import tracemalloc
from collections.abc import Callable
from itertools import starmap

import numpy as np
import pytest

from loadtest import workload
from loadtest.lab import bodies
from loadtest.lab.codecs import REFERENCE
from loadtest.lab.ranking import reference_backend
from scheduler.types import Array, InferResponse, ModelSpec, Timing
from transports.codecs import oip_http, oip_protobuf, predictor
from transports.codecs.oip_json import data_of
from transports.codecs.oip_tensors import tensors_of
from transports.codecs.predictor_client import decode_response, encode_request
from transports.proto import predictor_pb2
from transports.proto.open_inference_pb2 import ModelInferRequest

ROWS = 64
SCORES = 500_000


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return reference_backend(ROWS).spec


@pytest.fixture(scope="module")
def tensors() -> dict[str, Array]:
    return workload.draw(REFERENCE, ROWS, np.random.default_rng(0))


def root(array: Array) -> object:
    """Return what holds the memory of ``array``."""
    base: object = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base


def test_predictor_tensors_are_views_of_the_messages_bytes(tensors: dict[str, Array]) -> None:
    request = predictor.decode_request(encode_request(ROWS, tensors), "dlrm")
    assert {type(root(array)) for array in request.inputs.values()} == {bytes}


def test_raw_oip_tensors_are_views_of_the_messages_bytes(
    spec: ModelSpec, tensors: dict[str, Array]
) -> None:
    request = bodies.protobuf_body(tensors, spec).decode()
    assert {type(root(array)) for array in request.inputs.values()} == {bytes}


def test_binary_oip_tensors_that_begin_aligned_are_views_of_the_body(
    spec: ModelSpec, tensors: dict[str, Array]
) -> None:
    content = bodies.binary_body(tensors, spec).content
    head_bytes = len(content) - sum(array.nbytes for array in tensors.values())
    padded = content[:head_bytes].ljust(-(-head_bytes // 8) * 8) + content[head_bytes:]
    start = np.frombuffer(padded, np.uint8).ctypes.data
    assert start % 8 == 0  # or no test is to be had of this
    json_bytes = len(padded) - len(content) + head_bytes
    request, _ = oip_http.decode_request(padded, json_bytes, spec)
    whole = np.frombuffer(padded, np.uint8)
    assert all(np.shares_memory(whole, array) for array in request.inputs.values())


def test_a_binary_oip_tensor_that_begins_anywhere_is_copied_once_and_right(
    spec: ModelSpec, tensors: dict[str, Array]
) -> None:
    content = bodies.binary_body(tensors, spec).content
    head_bytes = len(content) - sum(array.nbytes for array in tensors.values())
    odd = head_bytes // 2 * 2 + 1
    shifted = content[:head_bytes].ljust(odd) + content[head_bytes:]
    request, _ = oip_http.decode_request(shifted, max(odd, head_bytes), spec)
    for name, array in request.inputs.items():
        assert array.flags.aligned
        np.testing.assert_array_equal(array, tensors[name])


def test_a_pair_a_feature_is_the_same_request_as_torchrecs_tensors(
    spec: ModelSpec, tensors: dict[str, Array]
) -> None:
    by_feature = bodies.pairs(tensors, REFERENCE.features)
    for body in (bodies.binary_body(by_feature, spec), bodies.protobuf_body(by_feature, spec)):
        request = body.decode()
        assert request.inputs.keys() == tensors.keys()
        same = starmap(np.array_equal, ((request.inputs[name], tensors[name]) for name in tensors))
        assert all(same)


def answer(scores: Array) -> InferResponse:
    return InferResponse("dlrm", "1", {"default": scores}, Timing(0.0, 0.0, len(scores)))


def oip_binary(response: InferResponse) -> bytes:
    return oip_http.encode_response(response, oip_http.Asked(all_binary=True))[1]


def oip_message(response: InferResponse) -> bytes:
    return oip_protobuf.encode_response(response, ModelInferRequest()).SerializeToString()


@pytest.mark.parametrize("encode", [predictor.encode_response, oip_binary, oip_message])
def test_a_binary_answer_takes_the_memory_of_a_few_copies_at_most(
    encode: Callable[[InferResponse], bytes],
) -> None:
    scores = np.random.default_rng(0).random(SCORES, np.float32)
    tracemalloc.start()
    content = encode(answer(scores))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(content) >= scores.nbytes
    assert peak_bytes < 3.5 * scores.nbytes  # a list of floats alone is 8 times


def test_what_is_written_as_json_is_the_array_itself() -> None:
    scores = np.zeros(8, np.float32)
    (tensor,) = tensors_of(answer(scores), ())
    assert np.shares_memory(data_of(tensor), scores)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 4096])
def test_a_predictor_answer_is_what_protobuf_reads_and_writes(size: int) -> None:
    scores = np.random.default_rng(size).random(size, np.float32)
    outputs: dict[str, Array] = {"default": scores, "other": scores.astype(np.float64)[::-1]}
    content = predictor.encode_response(InferResponse("dlrm", "1", outputs, Timing(0.0, 0.0, size)))
    message = predictor_pb2.PredictionResponse.FromString(content)
    assert set(message.predictions) == {"default", "other"}
    assert list(message.predictions["other"].data) == outputs["other"].astype(np.float32).tolist()
    assert decode_response(content)["default"].tolist() == scores.tolist()
    assert message.ByteSize() == len(content)
