"""What SECURITY.md says of ONNX files: no operators of their own, nothing outside their folder."""

import os
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper

from scheduler.errors import LoadError
from tests.fixtures.onnx import load_onnx
from tests.unit.test_onnx_refusals import describe, write_model


def test_an_operator_that_the_file_would_bring_itself_is_refused(tmp_path: Path) -> None:
    path = describe(write_model(tmp_path / "theirs.onnx"))
    model = onnx.load_model(path)
    model.graph.node[0].op_type, model.graph.node[0].domain = "Run", "their.library"
    model.opset_import.append(helper.make_opsetid("their.library", 1))
    onnx.save_model(model, path)
    with pytest.raises(LoadError, match=r"their\.library"):
        load_onnx(path)


@pytest.mark.parametrize("absolute", [False, True])
def test_tensors_that_lie_outside_the_files_folder_are_refused(
    tmp_path: Path, absolute: bool
) -> None:
    (tmp_path / "model").mkdir()
    outside = tmp_path / "secret"
    outside.write_bytes(bytes(4))
    path = describe(write_model(tmp_path / "model" / "theirs.onnx"))
    model = onnx.load_model(path)
    place = str(outside) if absolute else os.path.relpath(outside, path.parent)
    (one,) = (each for each in model.graph.initializer if each.name == "factor")
    one.ClearField("float_data")
    one.raw_data = bytes(4)
    external_data_helper.set_external_data(one, place, offset=0, length=4)
    one.ClearField("raw_data")
    one.data_location = TensorProto.EXTERNAL
    path.write_bytes(model.SerializeToString())
    with pytest.raises(LoadError, match="External data path validation failed"):
        load_onnx(path)
