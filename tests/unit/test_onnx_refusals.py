"""onnx_dlrm: what it refuses before it is ready, and in what words; files that others wrote."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from backends.onnx_dlrm.backend import OnnxDlrmBackend
from scheduler.errors import LoadError, ServingError
from scheduler.types import Array, Batch, InferRequest
from tests.fixtures.onnx import load_onnx

DENSE, LENGTHS, VALUES = (
    "float_features",
    "id_list_features.lengths",
    "id_list_features.values",
)
TABLES = {"tables": [{"feature": "a", "rows": 10}, {"feature": "b", "rows": 20}]}


def write_model(path: Path, **changes: Any) -> Path:
    """Write a file of the kind others write: flat int64 lengths, (rows, 1) scores, no metadata.

    A score is the sum of a row's dense values, plus one number for all ids and all lengths.
    """
    inputs = {
        DENSE: (TensorProto.FLOAT, ["rows", 3]),
        LENGTHS: (TensorProto.INT64, ["bags"]),
        VALUES: (TensorProto.INT64, ["ids"]),
        **changes.get("inputs", {}),
    }
    nodes = [
        helper.make_node("ReduceSum", [LENGTHS], ["bags_sum"], keepdims=0),
        helper.make_node("ReduceSum", [VALUES], ["ids_sum"], keepdims=0),
        helper.make_node("Add", ["bags_sum", "ids_sum"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", [DENSE, "one"], ["sums"], keepdims=1),
        helper.make_node("Add", ["sums", "number"], ["plus"]),
        helper.make_node("Mul", ["plus", "factor"], ["score"]),
        helper.make_node(
            "Identity", ["sums" if not changes.get("one_for_all") else "number"], ["second"]
        ),
    ]
    constants = [
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        helper.make_tensor("factor", TensorProto.FLOAT, [], [changes.get("factor", 1.0)]),
    ]
    graph = helper.make_graph(
        nodes, "foreign",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
         for name in ("score", "second")],
        constants,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18)]
    onnx.save_model(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def describe(path: Path, document: object = TABLES) -> Path:
    """Write the JSON file beside ``path``."""
    path.with_name(path.name + ".json").write_text(json.dumps(document))
    return path


def test_a_file_without_metadata_is_served_with_a_description_beside_it(tmp_path: Path) -> None:
    backend = load_onnx(describe(write_model(tmp_path / "theirs.onnx")))
    spec = backend.spec
    assert (spec.name, spec.version) == ("theirs", "1")
    lengths = spec.input(LENGTHS)
    assert lengths is not None
    assert (lengths.shape, lengths.labels) == ((2, "rows"), ("a", "b"))
    inputs: dict[str, Array] = {
        DENSE: np.ones((2, 3), np.float32),
        LENGTHS: np.ones((2, 2), np.int64),
        VALUES: np.array([1, 2, 3, 4]),
    }
    scores = backend.prepare(Batch((InferRequest("", 2, inputs),)))()
    np.testing.assert_array_equal(scores["score"], [17, 17])


def test_an_id_beyond_its_table_is_refused_by_name(tmp_path: Path) -> None:
    backend = load_onnx(describe(write_model(tmp_path / "theirs.onnx")))
    inputs: dict[str, Array] = {
        DENSE: np.ones((1, 3), np.float32),
        LENGTHS: np.ones((2, 1), np.int64),
        VALUES: np.array([9, 20]),
    }
    with pytest.raises(ServingError, match="feature 'b' row 0 has id 20; the table has 20 rows"):
        backend.check(InferRequest("", 1, inputs))


FILES = {
    "does not say how many rows its tables have": {},
    r"the inputs are .*, other; served are float_features": {
        "inputs": {"other": (TensorProto.FLOAT, [1])}
    },
    r"'float_features' is tensor\(float\) \['rows', 'n'\]; served is FP32": {
        "inputs": {DENSE: (TensorProto.FLOAT, ["rows", "n"])}
    },
    r"'id_list_features.lengths' is tensor\(int64\) \[2, 3, 'rows'\]; served is int32 or int64": {
        "inputs": {LENGTHS: (TensorProto.INT64, [2, 3, "rows"])}
    },
    r"'id_list_features.values' is tensor\(int64\) \[2, 'ids'\]; served is int32 or int64": {
        "inputs": {VALUES: (TensorProto.INT64, [2, "ids"])}
    },
}


@pytest.mark.parametrize(("words", "changes"), FILES.items(), ids=range(len(FILES)))
def test_a_file_with_other_inputs_is_refused(
    tmp_path: Path, words: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(LoadError, match=words):
        load_onnx(write_model(tmp_path / "theirs.onnx", **changes))


def test_scores_that_are_not_one_a_row_or_no_numbers_are_refused(tmp_path: Path) -> None:
    cut = describe(write_model(tmp_path / "cut.onnx", one_for_all=True))
    with pytest.raises(LoadError, match=r"output 'second' has shape \(\) for 2 rows"):
        load_onnx(cut)
    nan = describe(write_model(tmp_path / "nan.onnx", factor=float("nan")))
    with pytest.raises(LoadError, match="output 'score' of an ordinary request is not finite"):
        load_onnx(nan)


DESCRIPTIONS: dict[str, object] = {
    "lacks 'tables'": {"name": "x"},
    "describes no model: tables name no feature, or one twice": {"tables": []},
    "rows of 'a' are 0, not a number over 0": {"tables": [{"feature": "a", "rows": 0}]},
    "rows of 'a' are '9', not a number": {"tables": [{"feature": "a", "rows": "9"}]},
    "feature is 7, not a name": {"tables": [{"feature": 7, "rows": 1}]},
    "one twice": {"tables": TABLES["tables"] * 2},
    "describes no model": ["tables"],
    "3 dense features, 1 are named": {**TABLES, "dense_names": ["x"]},
    "name is '', not a name": {**TABLES, "name": ""},
}


@pytest.mark.parametrize(("words", "document"), DESCRIPTIONS.items())
def test_a_wrong_description_is_refused(tmp_path: Path, words: str, document: object) -> None:
    with pytest.raises(LoadError, match=words):
        load_onnx(describe(write_model(tmp_path / "theirs.onnx"), document))


def test_a_description_of_other_tables_than_the_model_has_is_refused(
    onnx_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(onnx_folder, tmp_path / "copy")
    describe(tmp_path / "copy" / "model.onnx")
    with pytest.raises(LoadError, match="26 id features, 2 tables are described"):
        load_onnx(tmp_path / "copy")


def test_a_damaged_or_missing_file_is_refused(onnx_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(onnx_folder, copy)
    data = bytearray((copy / "model.onnx.data").read_bytes())
    data[5000] ^= 1
    (copy / "model.onnx.data").write_bytes(data)
    with pytest.raises(LoadError, match=r"onnx\.data has SHA-256 \w{64}, but model\.onnx says"):
        load_onnx(copy)
    (copy / "model.onnx.data").write_bytes(data[:5000])
    with pytest.raises(LoadError, match=r"model\.onnx is not loaded by ONNX Runtime"):
        load_onnx(copy)
    (copy / "model.onnx").write_bytes((copy / "model.onnx").read_bytes()[:3000])
    with pytest.raises(LoadError, match=r"model\.onnx is not loaded by ONNX Runtime"):
        load_onnx(copy)
    with pytest.raises(LoadError, match=r"model\.onnx does not exist"):
        load_onnx(tmp_path)


def test_options_out_of_range_are_refused(onnx_folder: Path) -> None:
    with pytest.raises(ValueError, match="max_batch_rows must be at least 1, got 0"):
        load_onnx(onnx_folder, max_batch_rows=0)
    with pytest.raises(ValueError, match="lanes must be at least 0, got -1"):
        load_onnx(onnx_folder, lanes=-1)
    with pytest.raises(LoadError, match="no model: give the path"):
        OnnxDlrmBackend(OnnxDlrmBackend.Options()).load()
