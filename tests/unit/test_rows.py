"""A request's ids, and requests cut by rows, on inputs of every kind."""

from typing import Any

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.rows import count_ids, cut, id_inputs, ids_before
from scheduler.types import InferRequest, ModelSpec, TensorSpec
from tests.fixtures.gates import make_request

SPEC = FakeBackend(FakeOptions()).spec


def tensor(name: str, dtype: type[Any], *shape: Any, **fields: Any) -> TensorSpec:
    return TensorSpec(name, np.dtype(dtype), shape, **fields)


# Two id lists, one of them optional; weights that go with the second; one input for all rows.
MANY = ModelSpec(
    name="many",
    version="1",
    inputs=(
        tensor("user.lengths", np.int64, 2, "rows"),
        tensor("user.values", np.int64, "*", lengths="user.lengths"),
        tensor("item.lengths", np.int64, "rows", optional=True),
        tensor("item.values", np.int64, "*", lengths="item.lengths", optional=True),
        tensor("item.weights", np.float32, "*", lengths="item.lengths", optional=True),
        tensor("dense", np.float32, "rows", 2),
        tensor("temperature", np.float32, 1),
    ),
    outputs=(),
    max_batch_rows=4,
)


def three_rows(*without: str) -> InferRequest:
    inputs: dict[str, Any] = {
        "user.lengths": np.array([[1, 0, 2], [0, 2, 0]]),
        "user.values": np.array([10, 30, 31, 120, 121]),
        "item.lengths": np.array([2, 0, 1]),
        "item.values": np.array([1, 2, 3]),
        "item.weights": np.array([0.1, 0.2, 0.3], np.float32),
        "dense": np.arange(6, dtype=np.float32).reshape(3, 2),
        "temperature": np.array([0.5], np.float32),
    }
    kept = {name: array for name, array in inputs.items() if name not in without}
    return InferRequest("many", 3, kept, id="seven", timeout_s=2.0, outputs=("x",), priority=1)


ITEM = ("item.lengths", "item.values", "item.weights")


def test_only_integers_counted_by_lengths_are_ids() -> None:
    assert [spec.name for spec in id_inputs(MANY)] == ["user.values", "item.values"]
    assert [spec.name for spec in id_inputs(SPEC)] == ["id_list_features.values"]


def test_the_ids_of_every_list_count_and_those_left_out_do_not() -> None:
    ids = id_inputs(MANY)
    assert count_ids(ids, three_rows().inputs) == 8
    assert count_ids(ids, three_rows(*ITEM).inputs) == 5
    assert ids_before(ids, three_rows()).tolist() == [0, 3, 5, 8]
    assert ids_before(ids, three_rows(*ITEM)).tolist() == [0, 1, 3, 5]


def test_a_cut_takes_the_rows_of_every_input_and_leaves_what_has_no_rows() -> None:
    last_two = cut(MANY, three_rows(), 1, 3).inputs
    assert {name: array.tolist() for name, array in last_two.items()} == {
        "user.lengths": [[0, 2], [2, 0]],
        "user.values": [30, 31, 120, 121],
        "item.lengths": [0, 1],
        "item.values": [3],
        "item.weights": [pytest.approx(0.3)],
        "dense": [[2.0, 3.0], [4.0, 5.0]],
        "temperature": [0.5],
    }


def test_a_cut_has_no_input_that_its_request_left_out() -> None:
    piece = cut(MANY, three_rows(*ITEM), 0, 1)
    assert set(piece.inputs) == set(three_rows().inputs) - set(ITEM)


def test_a_cut_keeps_all_else_that_its_request_says() -> None:
    request = three_rows()
    piece = cut(MANY, request, 2, 3)
    assert piece.rows == 1
    for name in ("model", "id", "timeout_s", "outputs", "priority", "version"):
        assert getattr(piece, name) == getattr(request, name)


def test_all_rows_of_a_request_are_the_request_itself() -> None:
    request = make_request(5)
    assert cut(SPEC, request, 0, 5) is request


def test_a_cut_of_dense_features_copies_nothing() -> None:
    request = make_request(5)
    piece = cut(SPEC, request, 1, 4)
    assert np.shares_memory(piece.inputs["float_features"], request.inputs["float_features"])


def test_lengths_too_narrow_for_their_sum_are_cut_and_counted_all_the_same() -> None:
    lengths = np.full((1, 4), 100, np.int8)
    inputs: dict[str, Any] = {"ids.lengths": lengths, "ids.values": np.arange(400)}
    spec = ModelSpec(
        "wide",
        "1",
        inputs=(
            tensor("ids.lengths", np.int64, 1, "rows"),
            tensor("ids.values", np.int64, "*", lengths="ids.lengths"),
        ),
        outputs=(),
        max_batch_rows=1,
    )
    request = InferRequest("wide", 4, inputs)
    assert ids_before(id_inputs(spec), request).tolist() == [0, 100, 200, 300, 400]
    assert cut(spec, request, 2, 4).inputs["ids.values"].tolist() == list(range(200, 400))
