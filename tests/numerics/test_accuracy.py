"""``python -m loadtest.accuracy``: which scores are near enough to the artifact's and to FP32's."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.dlrm.manifest import HELDOUT_FILE, MANIFEST_FILE
from backends.torch_dlrm.export.golden import OUTPUT, Golden
from loadtest.accuracy import Rows, judged, main, rows_of
from loadtest.encodings import LENGTHS
from loadtest.parity import Line, Scores, fp32_scores
from scheduler.errors import LoadError

EXACT = np.array([0.1, 0.5, 0.9])


@pytest.mark.parametrize(
    ("artifact", "plan", "exact", "met"),
    [
        (2e-3, 1e-7, EXACT, [True, True, True]),
        (4e-3, 1e-7, EXACT, [True, True, False]),
        (2e-3, 2e-6, EXACT, [True, False, True]),
        (2e-3, math.nan, EXACT, [True, False, True]),
        (2e-3, 1e-7, np.full(3, 0.5), [False, True, True]),
    ],
)
def test_a_line_is_met_or_not(
    golden: Golden, artifact: float, plan: float, exact: Scores, met: list[bool]
) -> None:
    rows = Rows("some", golden.request(), exact)
    served = rows.exact_of_requests() + artifact
    lines = [Line("artifact", served), Line("plan", served + plan)]
    assert [check.met for check in judged(rows, lines)] == met


def test_the_rows_are_scored_in_hundreds_and_one_by_one(golden: Golden) -> None:
    requests = Rows("some", golden.request(), golden.fp32[OUTPUT].astype(np.float64)).requests()
    assert [request.rows for request in requests] == [100, 28] + [1] * 128


def test_weights_drawn_again_from_the_seed_give_the_recorded_scores(
    small_artifact: Path, golden: Golden
) -> None:
    recorded = golden.fp32[OUTPUT].astype(np.float64)
    drawn = fp32_scores(small_artifact, golden.request())
    assert np.abs(drawn - recorded).max() <= 1e-6


def test_weights_that_a_seed_gives_no_more_are_no_reference(
    small_artifact: Path, golden: Golden, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(small_artifact, folder)
    manifest = folder / MANIFEST_FILE
    manifest.write_text(manifest.read_text().replace('"seed 0"', '"seed 1"'))
    with pytest.raises(LoadError, match="its seed gives other weights here"):
        fp32_scores(folder, golden.request())


def test_a_plan_is_judged_on_the_workload_and_where_asked_on_the_golden_batch(
    small_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(small_artifact), "--only", "torch_dlrm:lean", "--rows", "20", "--golden"]
    main(arguments)
    printed = capsys.readouterr().out
    assert "| small: 20 rows of its workload, one id a bag | torch_dlrm:lean from the" in printed
    assert "| small: golden batch, 128 rows | the artifact from FP32 |" in printed
    assert printed.splitlines()[-1].endswith("of 6 met")


def test_the_workload_has_one_id_a_bag_and_held_out_rows_go_before_it(
    small_artifact: Path, golden: Golden, tmp_path: Path
) -> None:
    (workload,) = rows_of(small_artifact, 5, golden=False)
    assert (workload.request.inputs[LENGTHS] == 1).all()
    folder = tmp_path / "trained"
    shutil.copytree(small_artifact, folder)
    exact = golden.fp32[OUTPUT]
    arrays: dict[str, Any] = {**golden.inputs, "labels": np.zeros(128), "fp32": exact}
    np.savez(folder / HELDOUT_FILE, **arrays)
    (heldout,) = rows_of(folder, 5, golden=False)
    assert heldout.name == "trained: 128 rows held out from training"
    np.testing.assert_array_equal(heldout.exact, exact)


def test_a_folder_without_a_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert f"loadtest.accuracy: no backend loads {tmp_path}" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_named_once_with_how_to_make_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "absent"
    assert main([str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"loadtest.accuracy: {folder} does not exist; make one with: narsil")
