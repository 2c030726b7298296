"""The real thing: MovieLens-100K trained, served, asked over every wire."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from backends.torch_dlrm.export.check import check_artifact
from backends.torch_dlrm.train.command import NO_DATA
from loadtest.wires.kinds import KINDS
from tests.e2e.pasted import check_lines
from tests.e2e.process import NARSIL, narsil_serve
from tests.fixtures.pages import ADDRESS, examples

PAGE = Path(__file__).parents[2] / "docs/movielens.md"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def movielens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact folder, trained here."""
    folder = tmp_path_factory.mktemp("movielens")
    command = [str(NARSIL), "train", "movielens", "movielens", "--cache", "downloads"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == NO_DATA:
        pytest.skip(f"the package index cannot be reached: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return folder / "movielens"


def test_the_dlrm_beats_both_baselines_and_int8_costs_next_to_nothing(movielens: Path) -> None:
    models = json.loads((movielens / "metrics.json").read_text())["models"]
    best = max(models["popularity"]["auc"], models["logistic regression"]["auc"])
    assert models["DLRM, FP32"]["auc"] > best + 0.005
    assert abs(models["DLRM, INT8"]["auc"] - models["DLRM, FP32"]["auc"]) < 0.002


def test_the_golden_batch_is_of_scores_that_differ(movielens: Path) -> None:
    report = check_artifact(movielens)
    assert report.passed
    assert report.score_std > 0.1


def test_every_line_of_the_banner_works_when_pasted(movielens: Path, tmp_path: Path) -> None:
    with narsil_serve(tmp_path, [str(movielens)]) as process:
        note, *lines = process.banner.partition("Try it:")[2].split("\n  ")
        assert "and the movies" in note
        check_lines(lines, tmp_path)


def test_the_page_s_example_ranks_the_movies_that_a_user_has_not_rated(
    movielens: Path, tmp_path: Path
) -> None:
    (code,) = examples(PAGE, "python")
    with narsil_serve(tmp_path, [str(movielens)], ["http"]) as process:
        address = process.urls["http"].removeprefix("http://")
        code = code.replace(ADDRESS, address).replace("artifacts/movielens", str(movielens))
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    scores = [float(line.split()[0]) for line in done.stdout.splitlines()]
    assert len(scores) == 10
    assert 1 > scores[0] >= scores[9] > 0.5


def test_every_backend_and_wire_gives_the_scores_of_the_artifact_and_the_auc_of_fp32(
    movielens: Path, tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [NARSIL, "parity", str(movielens), "--json", str(figures)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    paths = {each["path"]: each for each in json.loads(figures.read_text())["paths"]}
    backends = {"torch_dlrm:lean", "native_dlrm:numba", "onnx_dlrm"}
    wires = {f"served, {name}" for name in KINDS}
    assert backends | wires <= set(paths)
    assert all(abs(each["AUC - FP32"]) <= 0.002 for each in paths.values())
    assert all((each["largest from INT8"] or 0) <= 1e-6 for each in paths.values())
