"""A context in tensors: what it may be, and what is refused of it by name."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.types import Array, InferRequest, ModelSpec
from tests.fixtures.ranking import ASKED, HAS, SPEC, everything, plain, random_ranked
from tests.fixtures.requests import DENSE, LENGTHS, VALUES
from transports.codecs.oip_request import decode
from transports.codecs.oip_tensors import Tensor, datatype_of, input_infos, properties
from transports.codecs.spelled_out import MAX_EXPANDED_BYTES

Tensors = dict[str, Array]


def decoded(tensors: Tensors, spec: ModelSpec = SPEC) -> InferRequest:
    given = [Tensor(n, datatype_of(a.dtype), a.shape, a) for n, a in tensors.items()]
    return decode(spec, given, ())


def refusal(tensors: Tensors, code: Code = Code.INVALID_REQUEST, spec: ModelSpec = SPEC) -> str:
    with pytest.raises(ServingError) as error:
        decoded(tensors, spec)
    assert error.value.code is code
    return error.value.detail


def test_a_context_that_has_everything_leaves_no_rows() -> None:
    detail = "context: has every column and feature, so nothing tells the candidates' rows"
    assert refusal(everything(4).pairs()) == detail


def test_leading_columns_need_no_naming() -> None:
    asked = random_ranked(SPEC, rows=3, seed=7, columns=(0, 1), shared=("cat_0", "cat_1"))
    tensors = asked.torchrec()
    del tensors["context.float_columns"], tensors["context.id_list_columns"]
    inputs = decoded(tensors).inputs
    for name, array in asked.spelled_out().inputs.items():
        np.testing.assert_array_equal(inputs[name], array, strict=True)


def test_one_id_a_feature_may_come_as_a_table_in_either_part() -> None:
    tensors: Tensors = {
        "context.float_features": np.array([[1, 2]], np.float32),
        "context.id_list_features": np.array([[7, 8]]),
        "context.id_list_columns": np.array([2, 0]),
        "float_features": np.array([[3], [4]], np.float32),
        "id_list_features": np.array([[5], [6]]),
    }
    inputs = decoded(tensors).inputs
    assert inputs[DENSE].tolist() == [[1, 2, 3], [1, 2, 4]]
    assert inputs[LENGTHS].tolist() == [[1, 1]] * 3
    assert inputs[VALUES].tolist() == [8, 8, 5, 6, 7, 7]


INT = np.int64
PAIRS, TORCHREC = ASKED.pairs(), ASKED.torchrec()
C = "context."
TENSOR_FAULTS = [
    (PAIRS, {C + "nope": np.zeros(1)}, ("no input 'context.nope'; a context may have float_columns,"
     " float_features, id_list_columns, id_list_features, id_list_features.lengths,"
     " id_list_features.values and a feature's own lengths and values")),
    (PAIRS, {C + "cat_0.values": None},
     "context: cat_0.values: missing; every feature needs its lengths and values"),
    (PAIRS, {C + "cat_0.lengths": np.array([9])},
     (f"context: cat_0.lengths: the lengths add up to 9, but cat_0.values has"
     f" {PAIRS[C + 'cat_0.values'].size} ids")),
    (PAIRS, {C + "cat_1.lengths": np.array([0]), C + "cat_1.values": np.zeros(0, INT)},
     "feature 'cat_1': given in the context and with the candidates, too"),
    (PAIRS, {"cat_1.lengths": None, "cat_1.values": None},
     f"cat_1.lengths: missing; every feature needs its lengths and values{HAS}"),
    (PAIRS, {DENSE: np.zeros((2, 3), np.float32)},
     f"float_features: expected shape [rows=2, 1], got [2, 3]{HAS}"),
    (PAIRS, {DENSE: None}, f"float_features: missing; model 'fake' needs it{HAS}"),
    (PAIRS, {"nope": np.zeros(1)}, ("no input 'nope'; the model has float_features,"
     f" id_list_features.lengths, id_list_features.values{HAS}")),
    (PAIRS, {C + DENSE: np.zeros(2, np.float32)},
     "context.float_features: expected shape [1, columns], got [2]"),
    (PAIRS, {C + DENSE: np.zeros((2, 2), np.float32)},
     "context.float_features: expected shape [1, columns], got [2, 2]"),
    (PAIRS, {C + DENSE: np.zeros((1, 2))},
     "context: float_features: expected float32, got float64"),
    (PAIRS, {C + DENSE: np.zeros((1, 4), np.float32)},
     "context.float_columns: the context has 4 columns, the model 3"),
    (PAIRS, {C + "float_columns": np.array([[0, 2]])},
     "context.float_columns: expected one dimension of signed integers, got int64 [1, 2]"),
    (PAIRS, {C + "float_columns": np.array([0, 2], np.float32)},
     "context.float_columns: expected one dimension of signed integers, got float32 [2]"),
    (PAIRS, {C + "float_columns": np.array([0, 0])},
     "context.float_columns: column 0 is given twice"),
    (PAIRS, {C + "id_list_columns": np.array([0])},
     "context.id_list_columns: has 1 entries, expected 0: one for each column"),
    (TORCHREC, {C + "id_list_columns": np.array([3])},
     "context.id_list_columns: no column 3, the model has 0..2"),
    (TORCHREC, {C + LENGTHS: np.zeros((4, 1), INT)},
     "context.id_list_columns: the context has 4 columns, the model 3"),
    (TORCHREC, {C + LENGTHS: np.zeros((1, 2), INT)},
     "context.id_list_features.lengths: expected shape [features, 1], got [1, 2]"),
    (TORCHREC, {C + LENGTHS: None},
     "context.id_list_features.lengths: missing beside context.id_list_features.values"),
    (TORCHREC, {C + VALUES: None},
     "context: id_list_features.values: missing; model 'fake' needs it"),
    (TORCHREC, {C + LENGTHS: np.array([[-1]])},
     "context: id_list_features.lengths: has length -1; lengths are at least 0"),
    (TORCHREC, {LENGTHS: np.full((2, 2), 2**62)},
     ("id_list_features.lengths: the lengths add up to 18446744073709551616,"
     f" but id_list_features.values has {TORCHREC[VALUES].size} ids{HAS}")),
    (TORCHREC, {LENGTHS: np.zeros((3, 2), INT)},
     f"id_list_features.lengths: expected shape [2, rows=2], got [3, 2]{HAS}"),
    (TORCHREC, {LENGTHS: None, VALUES: None},
     ("id_list_features: missing; give id_list_features [rows, 2], or id_list_features.lengths and"
     f" id_list_features.values, or FEATURE.lengths and FEATURE.values for each feature{HAS}")),
    (TORCHREC, {C + "cat_0.lengths": np.array([0]), C + "cat_0.values": np.zeros(0, INT)},
     ("context: id_list_features: given in two ways, as id_list_features.lengths and as"
     " cat_0.lengths")),
    ({**TORCHREC, DENSE: np.zeros((16_385, 1), np.float32)}, {},
     f"rows: 16385 exceed the limit of 16384 rows (max_request_rows){HAS}"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tensors", "edits", "detail"), TENSOR_FAULTS, ids=[detail for *_, detail in TENSOR_FAULTS]
)
def test_a_broken_context_in_tensors_is_refused_by_name(
    tensors: Tensors, edits: dict[str, Array | None], detail: str
) -> None:
    whole = {**tensors, **edits}
    assert refusal({n: a for n, a in whole.items() if a is not None}) == detail


def large(ids: int, rows: int, dtype: str = "int64") -> Tensors:
    return {
        "context.cat_0.lengths": np.array([ids]),
        "context.cat_0.values": np.zeros(ids, dtype),
        **{f"cat_{n}.lengths": np.zeros(rows, INT) for n in (1, 2)},
        **{f"cat_{n}.values": np.zeros(0, INT) for n in (1, 2)},
        DENSE: np.zeros((rows, 3), np.float32),
    }


@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_what_would_outgrow_the_limit_is_refused_before_anything_is_repeated(
    dtype: str,
) -> None:
    ids, rows = 200_000, 16_384
    tensors = large(ids, rows, dtype)
    tracemalloc.start()
    detail = refusal(tensors, Code.PAYLOAD_TOO_LARGE)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 4 << 20
    size_bytes = rows * (3 * 4 + 3 * 8 + ids * 8)
    assert detail == (
        f"context: repeated for {rows} candidates it makes a request of {size_bytes} bytes,"
        f" above the limit of {MAX_EXPANDED_BYTES} bytes"
    )


def test_the_limit_is_that_of_a_message_to_the_byte() -> None:
    spec = FakeBackend(FakeOptions(dense_features=1, sparse_features=1)).spec
    rows = 1024

    def tensors(ids: int) -> Tensors:
        return {
            "context.cat_0.lengths": np.array([ids], np.int32),
            "context.cat_0.values": np.zeros(ids, np.int32),
            DENSE: np.zeros((rows, 1), np.float32),
        }

    most = MAX_EXPANDED_BYTES // (4 * rows) - 2  # a length and a number are 8 bytes of each row
    assert decoded(tensors(most), spec).size_bytes == MAX_EXPANDED_BYTES
    refusal(tensors(most + 1), Code.PAYLOAD_TOO_LARGE, spec)


def test_metadata_tell_of_a_context_but_offer_no_inputs_for_it() -> None:
    assert "context." in properties(SPEC)["context"]
    assert [info.name for info in input_infos(SPEC)] == [DENSE, "id_list_features"]


def test_a_model_without_the_whole_of_columns_or_features_takes_no_context() -> None:
    optional = tuple(replace(tensor, optional=True) for tensor in SPEC.inputs)
    for spec in (
        plain("rows", 3),
        plain("rows", "*", name=DENSE),
        replace(SPEC, inputs=optional),
        replace(SPEC, inputs=SPEC.inputs[:2]),
    ):
        assert "context" not in properties(spec)
        tensors: Tensors = {"context.x": np.zeros(1, np.float32)}
        assert decoded(tensors, spec).inputs == tensors  # unknown, as the scheduler will say


def test_a_model_of_dense_columns_alone_takes_a_context() -> None:
    spec = plain("rows", 2, name=DENSE)
    tensors: Tensors = {C + DENSE: np.ones((1, 1), np.float32), DENSE: np.zeros((3, 1), np.float32)}
    assert decoded(tensors, spec).inputs[DENSE].tolist() == [[1, 0]] * 3


def test_a_feature_that_is_called_like_a_context_is_the_models_own() -> None:
    features = ("user", "context.user")
    spec = replace(
        FakeBackend(FakeOptions()).spec,
        inputs=tuple(
            replace(tensor, labels=features) if tensor.labels else tensor
            for tensor in FakeBackend(FakeOptions()).spec.inputs
        ),
    )
    tensors: Tensors = {DENSE: np.zeros((1, 3), np.float32)}
    for number, feature in enumerate(features):
        tensors[f"{feature}.lengths"] = np.array([1])
        tensors[f"{feature}.values"] = np.array([number])
    assert decoded(tensors, spec).inputs[VALUES].tolist() == [0, 1]
