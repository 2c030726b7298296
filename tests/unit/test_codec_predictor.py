import math
from collections.abc import Callable

import numpy as np
import pytest

from scheduler.errors import Code, ServingError
from scheduler.types import InferResponse, Timing
from tests.fixtures.wire import sample
from transports.codecs.predictor import decode_request, encode_response
from transports.proto import predictor_pb2

Message = predictor_pb2.PredictionRequest
INT32_MAX = 2**31 - 1


def int32s(*values: int) -> bytes:
    return np.array(values, np.int32).tobytes()


def int64s(*values: int) -> bytes:
    return np.array(values, np.int64).tobytes()


def refusal(body: bytes) -> str:
    with pytest.raises(ServingError) as refused:
        decode_request(body, "dlrm")
    assert refused.value.code is Code.INVALID_REQUEST
    return refused.value.detail


@pytest.mark.parametrize("lengths", ["i", "q"])
@pytest.mark.parametrize("ids", ["i", "q"])
def test_ids_and_lengths_of_either_width_are_told_apart_by_size(lengths: str, ids: str) -> None:
    request = decode_request(sample().message(lengths, ids).SerializeToString(), "dlrm")
    assert request.model == "dlrm"
    assert sample().is_what(request)
    dtypes = {"i": np.int32, "q": np.int64}
    assert request.inputs["id_list_features.lengths"].dtype == dtypes[lengths]
    assert request.inputs["id_list_features.values"].dtype == dtypes[ids]


def test_messages_without_features_are_left_out_as_torchrecs_client_sends_them() -> None:
    message = sample().message()
    message.id_score_list_features.SetInParent()
    message.embedding_features.SetInParent()
    message.unary_features.SetInParent()
    request = decode_request(message.SerializeToString(), "dlrm")
    assert set(request.inputs) == {
        "float_features",
        "id_list_features.lengths",
        "id_list_features.values",
    }


def test_an_empty_message_is_no_rows_and_no_inputs() -> None:
    request = decode_request(b"", "dlrm")
    assert (request.rows, dict(request.inputs)) == (0, {})


def test_values_without_rows_are_refused() -> None:
    message = Message()
    message.id_list_features.num_features = 1
    message.id_list_features.values = b"1"
    assert "values has 1 bytes, expected 0" in refusal(message.SerializeToString())


def test_zero_rows_are_a_request() -> None:
    message = Message()
    message.float_features.num_features = 13
    message.id_list_features.num_features = 26
    request = decode_request(message.SerializeToString(), "dlrm")
    assert request.inputs["float_features"].shape == (0, 13)
    assert request.inputs["id_list_features.lengths"].shape == (26, 0)


def test_other_kinds_of_features_are_decoded_under_their_own_names() -> None:
    message = Message(batch_size=1)
    message.embedding_features.num_features = 2
    message.embedding_features.values = np.array([1, 2], np.float32).tobytes()
    for field in (message.id_score_list_features, message.unary_features):
        field.num_features = 1
        field.lengths = int32s(2)
        field.values = int32s(5, 6)
    message.id_score_list_features.weights = np.array([0.5, 0.25], np.float32).tobytes()
    inputs = decode_request(message.SerializeToString(), "dlrm").inputs
    assert {name: array.tolist() for name, array in inputs.items()} == {
        "embedding_features": [[1.0, 2.0]],
        "id_score_list_features.lengths": [[2]],
        "id_score_list_features.values": [5, 6],
        "id_score_list_features.weights": [0.5, 0.25],
        "unary_features.lengths": [[2]],
        "unary_features.values": [5, 6],
    }


def test_nan_and_infinity_pass_bit_for_bit() -> None:
    message = Message(batch_size=3)
    message.float_features.num_features = 1
    message.float_features.values = b"\x01\x00\xc0\x7f\x00\x00\x80\x7f\x00\x00\x80\xff"
    dense = decode_request(message.SerializeToString(), "dlrm").inputs["float_features"]
    assert dense.tobytes() == message.float_features.values


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: setattr(m, "batch_size", -1), ["batch_size is -1"]),
        (lambda m: setattr(m, "batch_size", 3), ["24 bytes", "36", "batch_size 3"]),
        (lambda m: setattr(m, "batch_size", INT32_MAX), ["24 bytes", str(INT32_MAX * 12)]),
        (
            lambda m: setattr(m.float_features, "num_features", 0),
            ["float_features.num_features is 0 but values has 24 bytes"],
        ),
        (lambda m: setattr(m.float_features, "num_features", -3), ["num_features is -3"]),
        (lambda m: setattr(m.float_features, "num_features", INT32_MAX), [str(INT32_MAX * 8)]),
        (lambda m: setattr(m.float_features, "values", b""), ["has 0 bytes, expected 24"]),
        (lambda m: setattr(m.float_features, "values", b"123"), ["has 3 bytes, expected 24"]),
        (
            lambda m: setattr(m.id_list_features, "num_features", 0),
            ["num_features is 0 but lengths has 16 bytes"],
        ),
        (lambda m: setattr(m.id_list_features, "num_features", -1), ["num_features is -1"]),
        (
            lambda m: setattr(m.id_list_features, "num_features", 3),
            ["lengths has 16 bytes", "24 (int32) or 48 (int64)", "num_features 3 x batch_size 2"],
        ),
        (lambda m: setattr(m.id_list_features, "lengths", int32s(1, 2, 0)), ["has 12 bytes"]),
        (
            lambda m: setattr(m.id_list_features, "lengths", int32s(1, 2, 0, 7)),
            ["values has 16 bytes", "40 (int32) or 80 (int64)", "10 entries"],
        ),
        (
            lambda m: setattr(m.id_list_features, "lengths", int32s(1, 2, 0, -7)),
            ["entry 3 has length -7"],
        ),
        (
            lambda m: setattr(m.id_list_features, "lengths", int32s(*[INT32_MAX] * 4)),
            [f"{4 * INT32_MAX} entries"],
        ),
        # Four times 2^62 is 2^64: a sum that wraps would be 0 and fit empty values.
        (
            lambda m: m.id_list_features.MergeFromString(
                predictor_pb2.SparseFeatures(lengths=int64s(*[2**62] * 4)).SerializeToString()
            ),
            [f"{2**64} entries"],
        ),
        (lambda m: setattr(m.id_list_features, "values", int32s(1, 2, 3)), ["has 12 bytes"]),
        (lambda m: setattr(m.id_list_features, "values", b""), ["has 0 bytes"]),
        (
            lambda m: setattr(m.id_list_features, "weights", int32s(1)),
            ["weights has 4 bytes, expected 16", "the sum of lengths 4"],
        ),
        (
            lambda m: setattr(m.unary_features, "weights", b"1234"),
            ["unary_features.num_features is 0 but weights has 4 bytes"],
        ),
    ],
)
def test_a_message_that_contradicts_itself_is_refused_with_both_numbers(
    change: Callable[[Message], object], words: list[str]
) -> None:
    message = sample().message()
    change(message)
    detail = refusal(message.SerializeToString())
    for word in words:
        assert word in detail


@pytest.mark.parametrize("body", [b"\xff", b"\x12\xff\xff\xff\xff\x0f", b'{"float_features": []}'])
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    assert "not a predictor.PredictionRequest" in refusal(body)


def test_a_truncated_message_is_refused() -> None:
    assert "not a predictor.PredictionRequest" in refusal(
        sample().message().SerializeToString()[:-1]
    )


def test_an_answer_carries_every_output_bit_for_bit() -> None:
    scores = np.array([0.1, math.nan, math.inf, -0.0], np.float32)
    outputs = {"default": scores, "other": np.zeros(0, np.float32)}
    encoded = encode_response(InferResponse("dlrm", "7", outputs, Timing(0.0, 0.0, 1)))
    message = predictor_pb2.PredictionResponse.FromString(encoded)
    assert set(message.predictions) == {"default", "other"}
    decoded = np.array(message.predictions["default"].data, np.float32)
    assert decoded.tobytes() == scores.tobytes()
    assert list(message.predictions["other"].data) == []


# Few enough for Python's own arithmetic, and too many.
@pytest.mark.parametrize("bags", [2, 200])
@pytest.mark.parametrize("integers", [int32s, int64s])
def test_a_negative_length_is_refused_by_its_entry(
    integers: Callable[..., bytes], bags: int
) -> None:
    message = Message(batch_size=bags // 2)
    message.id_list_features.num_features = 2
    message.id_list_features.lengths = integers(*[1] * (bags - 1), -1)
    message.id_list_features.values = integers(*[7] * (bags - 2))
    assert refusal(message.SerializeToString()) == (
        f"id_list_features.lengths: entry {bags - 1} has length -1; lengths are at least 0"
    )


@pytest.mark.parametrize("bags", [2, 200])
def test_lengths_whose_sum_wraps_around_do_not_fit_the_ids_that_it_wraps_to(bags: int) -> None:
    message = Message(batch_size=bags // 2)
    message.id_list_features.num_features = 2
    message.id_list_features.lengths = int64s(2**63 - 1, 2**63 - 1, *[1] * (bags - 2))
    message.id_list_features.values = int64s(*[7] * max(0, bags - 4))
    assert f"expected {(2**64 - 4 + bags) * 4} (int32)" in refusal(message.SerializeToString())


@pytest.mark.parametrize("rows", [0, 1, 25, 31, 32, 4095, 16_384])
@pytest.mark.parametrize("name", ["default", "\u00fcber" * 30])
def test_an_answer_of_any_size_is_what_protobuf_would_write(name: str, rows: int) -> None:
    scores = np.arange(rows, dtype=np.float32)
    answer = InferResponse("dlrm", "7", {name: scores}, Timing(0.0, 0.0, 1))
    message = predictor_pb2.PredictionResponse()
    message.predictions[name].data.extend(scores.tolist())
    assert predictor_pb2.PredictionResponse.FromString(encode_response(answer)) == message
