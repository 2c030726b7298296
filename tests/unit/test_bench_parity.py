"""What ``narsil parity`` lets pass."""

import math
from pathlib import Path

import numpy as np
import pytest

from loadtest.parity import judge, main, onnx, read_heldout
from scheduler.errors import LoadError


def figures(apart: float | None, auc: float) -> dict[str, object]:
    """Return one path's figures."""
    return {"path": "somewhere", "largest from INT8": apart, "AUC - FP32": auc}


@pytest.mark.parametrize(
    ("apart", "auc", "code"),
    [
        (None, 0.0, 0),
        (1e-7, -0.001, 0),
        (1e-7, -0.003, 1),
        (1e-3, 0.0, 1),
        (math.nan, 0.0, 1),
        (0.0, math.nan, 1),
    ],
)
def test_a_path_that_scores_otherwise_is_named(
    capsys: pytest.CaptureFixture[str], apart: float | None, auc: float, code: int
) -> None:
    assert judge([figures(None, 0.0), figures(apart, auc)]) == code
    said = capsys.readouterr()
    assert ("somewhere" in said.err) == bool(code)
    assert said.out.startswith("passed: ") == (not code)


def test_a_folder_that_was_not_trained_here_is_an_error(
    small_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(small_artifact)]) == 1
    assert f"loadtest.accuracy {small_artifact}" in capsys.readouterr().err


def test_where_there_is_no_onnx_the_one_who_asks_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    assert onnx(tmp_path / "none", [], lambda name, _: told.append(name)) == []
    assert told == ["onnx_dlrm"]


def test_a_file_without_labels_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "heldout.npz", float_features=np.zeros((1, 1)))
    with pytest.raises(LoadError, match="is not of narsil train"):
        read_heldout(tmp_path / "heldout.npz")
