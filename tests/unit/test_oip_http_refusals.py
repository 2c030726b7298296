"""Bodies of the Open Inference Protocol over HTTP that are refused, and by which name."""

from typing import Any

import orjson
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from tests.fixtures.requests import DENSE
from transports.codecs.oip_http import MAX_TENSORS, decode_request

SPEC = FakeBackend(FakeOptions()).spec


def document(*inputs: Any, **fields: Any) -> bytes:
    return orjson.dumps({"inputs": list(inputs), **fields})


def tensor(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2], **fields}


def refused(body: bytes, json_bytes: int | None = None) -> str:
    with pytest.raises(ServingError) as raised:
        decode_request(body, json_bytes, SPEC)
    assert raised.value.code is Code.INVALID_REQUEST
    assert len(raised.value.detail) < 500
    return raised.value.detail


REFUSED = [
    (b"", "body is empty"),
    (b"{", "not JSON"),
    (b"[]", "body is a list"),
    (b"{}", "request: inputs is missing, expected a list"),
    (b'{"inputs": 1}', "request: inputs is 1, expected a list"),
    (b'{"inputs": [1]}', "request: inputs has 1, expected objects"),
    (b'{"inputs": [{}]}', "an input: name is missing"),
    (document(tensor(), tensor()), "tensor 'x': given twice"),
    (document(tensor(name=1)), "an input: name is 1, expected a string"),
    (document(tensor(datatype="FP31")), "tensor 'x': datatype 'FP31' is not supported"),
    (document(tensor(datatype="BYTES", data=["a", "b"])), "BYTES"),
    (document(tensor(shape=2)), "shape is 2, expected a list"),
    (document(tensor(shape=["2"])), "shape has an entry that is no integer"),
    (document(tensor(shape=[True, 2])), "shape has an entry that is no integer"),
    (document(tensor(shape=[-2])), "negative"),
    (document(tensor(shape=[3])), "has 2 entries, expected 3"),
    (document(tensor(shape=[2**62, 2**62])), "larger than any memory"),
    (document(tensor(shape=[1] * 9)), "dimensions"),
    (document(tensor(data=None)), "data is null, expected a list"),
    (document(tensor(data=[1, "2"])), 'entry 1 is "2", expected a number'),
    (document(tensor(data=[1, True])), "entry 1 is true, expected a number"),
    (document(tensor(data=[1, None])), "entry 1 is null, expected a number"),
    (document(tensor(data=[1, 1e39])), "entry 1 is 1e+39, over float32's limit 3.4028235e+38"),
    (document(tensor(datatype="INT8", data=[1, 128])), "entry 1 is 128, which does not fit int8"),
    (document(tensor(datatype="UINT8", data=[1, -1])), "entry 1 is -1, which does not fit uint8"),
    (document(tensor(datatype="INT64", data=[1, 1.0])), "entry 1 is 1.0, expected an integer"),
    (document(tensor(datatype="BOOL", data=[1, 0])), "entry 0 is 1, expected true or false"),
    (document(tensor(data=[[1], [2]])), "entry 0 is a list, expected a number"),
    (document(tensor(shape=[1, 1], data=[[1], [2]])), "a list of 2 at depth 1, expected 1"),
    (document(tensor(shape=[2, 1], data=[[1], [2, 3]])), "a list of 2 at depth 2, expected 1"),
    (document(tensor(shape=[2, 1], data=[[1], 2])), "data, list 1 is 2, expected a list"),
    (document(tensor(parameters=1)), "parameters is 1, expected an object"),
    (document(tensor(parameters={"binary_data_size": 8})), "both data and binary_data_size"),
    (document(id=7), "request: id is 7, expected a string"),
    (document(parameters={"a": []}), "parameter 'a' is a list"),
    (document(parameters={"priority": -1}), "priority"),
    (document(parameters={"timeout": "5"}), "timeout"),
    (document(parameters={"binary_data_output": 1}), "binary_data_output is 1"),
    (document(outputs=[{"name": "a"}, {"name": "a"}]), "output 'a': asked for twice"),
    (document(outputs=[{"name": "a", "parameters": {"binary_data": 1}}]), "binary_data is 1"),
    (b'{"inputs": [], "inputs": []}', "twice"),
    (b'{"inputs": [{"name": "x", "name": "y"}]}', "twice"),
    (b'{"inputs": [{"name": "x", "parameters": {"a": 1, "a": 2}}]}', "twice"),
    (document(*[tensor()] * (MAX_TENSORS + 1)), "above the limit"),
]


@pytest.mark.parametrize(("body", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_what_is_wrong_is_refused_by_name(body: bytes, named: str) -> None:
    assert named in refused(body)


@pytest.mark.parametrize("body", [b'{"inputs": [NaN]}', b'{"inputs": [Infinity]}'])
def test_json_has_no_nan_and_no_infinity(body: bytes) -> None:
    assert "not JSON" in refused(body)


def binary_tensor(size_bytes: Any) -> dict[str, Any]:
    own = {"binary_data_size": size_bytes}
    return {"name": DENSE, "shape": [1, 3], "datatype": "FP32", "parameters": own}


@pytest.mark.parametrize(
    ("size_bytes", "tail_bytes", "named"),
    [
        (12, 11, "binary_data_size is 12, but 11 bytes are left of the 11"),
        (12, 13, "13 bytes after the JSON, but the binary_data_size of all inputs add up to 12"),
        (8, 8, "has 8 bytes, expected 12"),
        (-1, 0, "binary_data_size is -1"),
        (2**63, 8, f"binary_data_size is {2**63}"),
        (True, 1, "binary_data_size is true, expected an integer"),
        ("12", 12, 'binary_data_size is "12", expected an integer'),
    ],
)
def test_binary_sizes_that_do_not_add_up_are_refused(
    size_bytes: Any, tail_bytes: int, named: str
) -> None:
    head = document(binary_tensor(size_bytes))
    assert named in refused(head + bytes(tail_bytes), len(head))


def test_binary_data_without_the_header_are_refused() -> None:
    assert "0 bytes are left of the 0 after the JSON" in refused(document(binary_tensor(12)))


def test_a_header_longer_than_the_body_is_refused() -> None:
    assert "inference-header-content-length is 99, but the body has 2 bytes" in refused(b"{}", 99)


@pytest.mark.parametrize("parameter", ["shared_memory_region", "classification"])
def test_extensions_that_are_not_served_are_unsupported(parameter: str) -> None:
    own = {parameter: 1}
    for body in (
        document(tensor(parameters=own)),
        document(outputs=[{"name": "a", "parameters": own}]),
    ):
        with pytest.raises(ServingError, match=parameter) as raised:
            decode_request(body, None, SPEC)
        assert raised.value.code is Code.UNSUPPORTED
