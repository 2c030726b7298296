"""What a message costs to parse is bounded before it is parsed."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import Code, ServingError
from transports.codecs.oip_protobuf import MAX_TENSORS, MAX_TYPED_BYTES, parse_request
from transports.codecs.protobuf_bounds import check_bounds
from transports.proto.open_inference_pb2 import ModelInferRequest


def refusal_of(body: bytes) -> ServingError:
    with pytest.raises(ServingError) as refusal:
        parse_request(body)
    return refusal.value


@pytest.mark.parametrize("field", [5, 6, 7])
def test_millions_of_empty_entries_are_refused_unparsed(field: int) -> None:
    refusal = refusal_of(bytes([field << 3 | 2, 0]) * 1_000_000)
    assert refusal.code is Code.PAYLOAD_TOO_LARGE
    assert str(3 * MAX_TENSORS) in refusal.detail


def test_many_typed_entries_are_refused_unparsed_naming_the_limit() -> None:
    message = ModelInferRequest()
    message.inputs.add(name="ids").contents.int64_contents.extend([1] * (MAX_TYPED_BYTES + 1))
    refusal = refusal_of(message.SerializeToString())
    assert refusal.code is Code.PAYLOAD_TOO_LARGE
    assert str(MAX_TYPED_BYTES) in refusal.detail


def test_raw_tensors_may_be_as_large_as_the_message() -> None:
    message = ModelInferRequest(raw_input_contents=[bytes(3 << 20), bytes(3 << 20)])
    assert parse_request(message.SerializeToString()) == message


@given(st.binary(max_size=200))
def test_arbitrary_bytes_pass_or_are_too_large_and_nothing_else(body: bytes) -> None:
    check_bounds(body, bulk_field=7, max_fields=1000, max_bytes=1000)


@given(st.binary(max_size=200), st.integers(0, 20), st.integers(0, 50))
def test_arbitrary_bytes_under_any_bounds_raise_nothing_but_a_refusal(
    body: bytes, max_fields: int, max_bytes: int
) -> None:
    with contextlib.suppress(ServingError):
        check_bounds(body, 7, max_fields, max_bytes)
