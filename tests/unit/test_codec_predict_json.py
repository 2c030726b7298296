import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from scheduler.errors import Code, ServingError
from scheduler.types import InferResponse, ModelSpec, TensorSpec, Timing
from tests.fixtures.wire import make_spec, sample, to_json
from transports.codecs.predict_json import decode_request, encode_response

Document = dict[str, Any]


def refusal(body: bytes, spec: ModelSpec | None = None) -> str:
    with pytest.raises(ServingError) as refused:
        decode_request(body, spec or make_spec())
    assert refused.value.code is Code.INVALID_REQUEST
    return refused.value.detail


def row_wise(change: Callable[[Document], object]) -> bytes:
    document = copy.deepcopy(sample().row_wise())
    change(document)
    return to_json(document)


def columnar(change: Callable[[Document], object]) -> bytes:
    document = copy.deepcopy(sample().columnar())
    change(document)
    return to_json(document)


def user(document: Document) -> Any:
    return document["id_list_features"]["user"]


@pytest.mark.parametrize("document", [sample().row_wise(), sample().columnar()])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_both_layouts_decode_to_the_same_key_major_request(
    document: Document, wrap: Callable[[bytes], bytes]
) -> None:
    request = decode_request(wrap(to_json(document)), make_spec())
    assert request.model == "dlrm"
    assert sample().is_what(request)


@pytest.mark.parametrize("document", [sample().row_wise(), sample().columnar()])
def test_ids_and_lengths_take_the_dtype_of_the_model(document: Document) -> None:
    request = decode_request(to_json(document), make_spec(ids="int32", lengths="int32"))
    assert request.inputs["id_list_features.values"].dtype == np.int32
    assert request.inputs["id_list_features.lengths"].dtype == np.int32


def test_features_may_come_in_any_order() -> None:
    def reverse(document: Document) -> None:
        document["id_list_features"] = dict(reversed(document["id_list_features"].items()))

    assert sample().is_what(decode_request(row_wise(reverse), make_spec()))
    assert sample().is_what(decode_request(columnar(reverse), make_spec()))


def test_whole_numbers_are_floats_in_dense_features() -> None:
    body = row_wise(
        lambda document: document.update(float_features=[[0, 1, -2], [3, 4, 2**64 - 1]])
    )
    dense = decode_request(body, make_spec()).inputs["float_features"]
    assert dense.tolist() == [[0, 1, -2], [3, 4, 2.0**64]]


def test_the_largest_ids_of_64_bits_survive() -> None:
    body = row_wise(lambda document: user(document).__setitem__(0, [2**63 - 1, -(2**63)]))
    values = decode_request(body, make_spec()).inputs["id_list_features.values"]
    assert values[:2].tolist() == [2**63 - 1, -(2**63)]


def test_zero_rows_are_a_request() -> None:
    empty: Document = {"user": [], "item": []}
    flat: Document = {"user": {"lengths": [], "values": []}, "item": {"lengths": [], "values": []}}
    for document in (
        {"float_features": [], "id_list_features": empty},
        {"rows": 0, "float_features": [], "id_list_features": flat},
    ):
        request = decode_request(to_json(document), make_spec())
        assert request.rows == 0
        assert request.inputs["float_features"].shape == (0, 3)
        assert request.inputs["id_list_features.lengths"].shape == (2, 0)
        assert request.inputs["id_list_features.values"].shape == (0,)


def test_optional_fields_reach_the_request() -> None:
    options = {"id": "r: 1", "outputs": ["default"], "timeout_ms": 2.5}
    request = decode_request(row_wise(lambda document: document.update(options)), make_spec())
    assert (request.id, request.outputs, request.timeout_s) == ("r: 1", ("default",), 0.0025)


def test_optional_fields_may_be_absent() -> None:
    request = decode_request(to_json(sample().row_wise()), make_spec())
    assert (request.id, request.outputs, request.timeout_s) == ("", (), math.inf)


def test_a_model_without_dense_features_takes_its_rows_from_the_ids() -> None:
    spec = make_spec()
    spec = ModelSpec(spec.name, spec.version, spec.inputs[1:], spec.outputs, 1024)
    request = decode_request(row_wise(lambda document: document.pop("float_features")), spec)
    assert request.rows == 2
    assert "no input float_features" in refusal(to_json(sample().row_wise()), spec)


def test_a_model_that_does_not_name_its_features_is_refused_in_json() -> None:
    assert "does not name its features" in refusal(
        to_json(sample().row_wise()), make_spec(features=())
    )


def test_a_model_without_a_dense_width_is_refused_in_json() -> None:
    spec = make_spec()
    dense = TensorSpec("float_features", np.dtype(np.float32), ("rows", "*"))
    spec = ModelSpec(spec.name, spec.version, (dense, *spec.inputs[1:]), spec.outputs, 1024)
    assert "fixes no width" in refusal(to_json(sample().row_wise()), spec)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(x=1), 'unknown field "x"'),
        (lambda d: d.pop("float_features"), "float_features is missing"),
        (lambda d: d.pop("id_list_features"), "id_list_features is missing"),
        (lambda d: d.update(id=3), "id is 3"),
        (lambda d: d.update(id=None), "id is null"),
        (lambda d: d.update(outputs="default"), 'outputs is "default"'),
        (lambda d: d.update(outputs=[1]), "outputs has 1"),
        (lambda d: d.update(timeout_ms=0), "timeout_ms is 0"),
        (lambda d: d.update(timeout_ms=True), "timeout_ms is true"),
        (lambda d: d.update(timeout_ms="1"), 'timeout_ms is "1"'),
        (lambda d: d["id_list_features"].pop("item"), "lacks feature item (1 of 2 missing)"),
        (lambda d: d["id_list_features"].update(dog=[]), 'unknown feature "dog"'),
        (lambda d: d.update(id_list_features=[]), "id_list_features is a list"),
    ],
)
@pytest.mark.parametrize("layout", [row_wise, columnar])
def test_a_fault_in_either_layout_is_named(
    layout: Callable[[Callable[[Document], object]], bytes],
    change: Callable[[Document], object],
    words: str,
) -> None:
    assert words in refusal(layout(change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(float_features="x"), 'float_features is "x"'),
        (
            lambda d: d.update(float_features=[0.1, 2, 3]),
            "float_features is a flat list of 3 values, expected a list of 3 numbers for each row",
        ),
        (lambda d: d["float_features"].pop(), "user has 2 rows, the request has 1"),
        (lambda d: d["float_features"].__setitem__(1, 5), "row 1 is 5, expected a list of 3"),
        (lambda d: d["float_features"][1].pop(), "row 1 has 2 values, expected 3"),
        (lambda d: d.update(float_features=[[1] * 4] * 2), "row 0 has 4 values, expected 3"),
        (lambda d: d["float_features"][1].__setitem__(2, 1e39), "row 1, value 2, is 1e+39"),
        (lambda d: d["float_features"][0].__setitem__(1, True), "row 0, value 1, is true"),
        (lambda d: d["float_features"][0].__setitem__(1, None), "row 0, value 1, is null"),
        (lambda d: d["float_features"][0].__setitem__(1, [1]), "row 0, value 1, is a list"),
        (lambda d: user(d).pop(), "user has 1 rows, the request has 2"),
        (lambda d: d["id_list_features"].update(user="ab"), 'user is "ab"'),
        (lambda d: d["id_list_features"].update(user={}), "needs the field rows"),
        (lambda d: user(d).__setitem__(1, 4), "user row 1 is 4, expected a list of ids"),
        (lambda d: user(d).__setitem__(1, "ab"), 'user row 1 is "ab"'),
        (lambda d: user(d).__setitem__(1, None), "user row 1 is null"),
        (lambda d: user(d)[1].__setitem__(1, 1.5), "user row 1, id 1, is 1.5"),
        (lambda d: user(d)[1].__setitem__(1, True), "user row 1, id 1, is true"),
        (lambda d: user(d)[1].__setitem__(0, "4"), 'user row 1, id 0, is "4"'),
        (lambda d: user(d)[1].__setitem__(0, None), "user row 1, id 0, is null"),
        (lambda d: user(d)[1].__setitem__(0, 2**63), f"is {2**63}, which does not fit int64"),
        (lambda d: user(d)[1].__setitem__(0, 2**64), "expected an integer"),
        (lambda d: user(d)[1].__setitem__(0, -(2**63) - 1), "expected an integer"),
        (lambda d: d["id_list_features"]["item"][1].append({}), "item row 1, id 1, is an object"),
    ],
)
def test_a_fault_in_the_row_wise_layout_is_named(
    change: Callable[[Document], object], words: str
) -> None:
    assert words in refusal(row_wise(change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(rows=True), "rows is true"),
        (lambda d: d.update(rows=2.0), "rows is 2.0"),
        (lambda d: d.update(rows=-1), "rows is -1"),
        (lambda d: d.update(rows=3), "6 values, expected 9: 3 rows x 3"),
        (lambda d: d.update(rows=2**63), f"rows: {2**63} exceed the limit of 1024"),
        (lambda d: d.update(float_features=None), "float_features is null"),
        (lambda d: d.update(float_features=[[1, 2, 3], [4, 5, 6]]), "2 values, expected 6"),
        (lambda d: d["float_features"].__setitem__(4, 1e39), "float_features[4] is 1e+39"),
        (lambda d: d["float_features"].__setitem__(4, "1"), 'float_features[4] is "1"'),
        (lambda d: d["id_list_features"].update(user=[[3], [4]]), "user is a list"),
        (lambda d: user(d).pop("values"), 'user has "lengths", expected exactly'),
        (lambda d: user(d).clear(), "user has nothing, expected exactly"),
        (lambda d: user(d).update(weights=[]), "expected exactly lengths and values"),
        (lambda d: user(d).update(lengths={}), "user.lengths is an object"),
        (lambda d: user(d).update(values=3), "user.values is 3"),
        (lambda d: user(d)["lengths"].pop(), "lengths has 1 entries, expected 2"),
        (lambda d: user(d)["lengths"].__setitem__(1, 5), "sum to 6, but values has 3"),
        (lambda d: user(d)["lengths"].__setitem__(1, True), "user.lengths[1] is true"),
        (
            lambda d: user(d)["lengths"].__setitem__(1, 2**63),
            "user.lengths[1] is 9223372036854775808",
        ),
        (lambda d: user(d)["lengths"].__setitem__(0, 2**63 - 1), "sum to 9223372036854775809"),
        (lambda d: user(d)["values"].__setitem__(2, 1.5), "user.values[2] is 1.5"),
        (
            lambda d: d["id_list_features"]["item"]["values"].__setitem__(0, False),
            "item.values[0] is false",
        ),
    ],
)
def test_a_fault_in_the_columnar_layout_is_named(
    change: Callable[[Document], object], words: str
) -> None:
    assert words in refusal(columnar(change))


@pytest.mark.parametrize(
    "document",
    [
        {"float_features": ["no list"] * 1025},
        {"rows": 1025, "float_features": ["no number"] * 3 * 1025},
    ],
)
def test_too_many_rows_are_refused_before_their_values_are_looked_at(document: Document) -> None:
    body = to_json({"id_list_features": {"user": [], "item": []}, **document})
    assert refusal(body) == "rows: 1025 exceed the limit of 1024 rows (max_request_rows)"


def test_too_many_rows_are_refused_without_dense_features_too() -> None:
    spec = make_spec()
    spec = ModelSpec(spec.name, spec.version, spec.inputs[1:], spec.outputs, 1024)
    column = ["no list"] * 1025
    body = to_json({"id_list_features": {"user": column, "item": column}})
    assert "rows: 1025 exceed the limit of 1024" in refusal(body, spec)


def test_ids_that_would_move_between_features_are_refused_though_the_total_fits() -> None:
    def move(document: Document) -> None:
        document["id_list_features"]["item"]["values"].append(user(document)["values"].pop())

    assert "user.lengths sum to 3, but values has 2 entries" in refusal(columnar(move))


def test_ids_are_held_to_the_range_of_a_model_with_int32_ids() -> None:
    body = row_wise(lambda document: user(document)[1].__setitem__(1, 2**31))
    assert "user row 1, id 1, is 2147483648, which does not fit int32" in refusal(
        body, make_spec(ids="int32")
    )


def response(scores: list[float]) -> InferResponse:
    outputs = {"default": np.array(scores, np.float32)}
    return InferResponse("dlrm", "7", outputs, Timing(0.0, 0.0, 1))


def test_an_answer_names_model_version_and_scores() -> None:
    assert orjson.loads(encode_response(response([0.25, 0.5]))) == {
        "model": "dlrm",
        "version": "7",
        "predictions": {"default": [0.25, 0.5]},
    }


def test_an_answer_of_no_rows_is_an_empty_list() -> None:
    assert orjson.loads(encode_response(response([])))["predictions"] == {"default": []}


def test_scores_json_cannot_write_become_null() -> None:
    encoded = encode_response(response([math.nan, math.inf, -math.inf, 1.0]))
    assert orjson.loads(encoded)["predictions"] == {"default": [None, None, None, 1.0]}


def test_scores_that_are_a_view_with_strides_are_encoded() -> None:
    outputs = {"default": np.arange(6, dtype=np.float32)[::2]}
    encoded = encode_response(InferResponse("dlrm", "7", outputs, Timing(0.0, 0.0, 1)))
    assert orjson.loads(encoded)["predictions"] == {"default": [0.0, 2.0, 4.0]}
