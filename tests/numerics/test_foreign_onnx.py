"""A DLRM that somebody else wrote as ONNX: inspected, served, and said what it lacks."""

import json
from pathlib import Path

import numpy as np
import pytest

from backends.bring.inspect import main as inspect
from backends.onnx_dlrm.backend import OnnxDlrmBackend
from scheduler.errors import Code, LoadError, ServingError
from scheduler.types import Batch
from tests.fixtures.checkpoints import a_request
from tests.fixtures.foreign_onnx import ROWS, scores, write_dlrm
from tests.fixtures.onnx import load_onnx
from tests.fixtures.requests import VALUES

FEATURES = ("size", "brand", "colour")


def describe(path: Path) -> None:
    tables = [{"feature": name, "rows": rows} for name, rows in zip(FEATURES, ROWS, strict=True)]
    path.with_name(path.name + ".json").write_text(json.dumps({"tables": tables}))


def test_it_is_served_with_the_scores_that_it_has_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_dlrm(tmp_path / "clicks.onnx")
    assert inspect([str(path)]) == 1
    assert f"write {path}.json with a list 'tables'" in capsys.readouterr().out
    describe(path)
    assert inspect([str(path)]) == 0
    told = capsys.readouterr().out
    assert "2 dense features; outputs click" in told
    assert f"narsil serve {path} --backend onnx_dlrm" in told
    backend = load_onnx(path, max_batch_rows=16)
    request = a_request()
    assert backend.check(request) is None
    (found,) = backend.prepare(Batch((request,)))().values()
    expected = scores(request)
    assert expected.std() > 0.05
    assert np.allclose(found, expected, rtol=0, atol=1e-6)
    ids = request.inputs[VALUES].copy()
    ids[0] = ROWS[0]
    with pytest.raises(ServingError, match="feature 'size' row 0 has id 7") as refusal:
        backend.check(request.with_inputs({**request.inputs, VALUES: ids}))
    assert refusal.value.code is Code.INVALID_REQUEST


def test_other_inputs_are_named_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_dlrm(tmp_path / "clicks.onnx", ("dense_x", "offsets", "indices"))
    describe(path)
    words = (
        "the inputs are dense_x, indices, offsets; served are float_features,"
        " id_list_features.lengths, id_list_features.values (docs/onnx.md): export it with those,"
        " or bring the model's checkpoint (docs/bring-your-own.md)"
    )
    assert inspect([str(path)]) == 1
    assert words in capsys.readouterr().err
    backend = OnnxDlrmBackend(OnnxDlrmBackend.Options(str(path)))
    with pytest.raises(LoadError) as refusal:
        backend.load()
    assert words in str(refusal.value)
