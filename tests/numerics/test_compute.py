"""``python -m loadtest.compute``: every plan beside the artifact's own."""

from pathlib import Path

import pytest

from loadtest import compute
from loadtest.candidates import names
from loadtest.floor import Peak, Work, read_work


def test_every_plan_is_measured_and_scores_as_the_artifact(
    small_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = ["torch_dlrm:artifact", "torch_dlrm:lean"]
    assert set(plans) <= set(names())
    assert "fake" not in names()
    arguments = ["--rows", "1,3", "--rounds", "1", "--only", ",".join(plans)]
    assert compute.main([str(small_artifact), *arguments]) == 0
    printed = capsys.readouterr().out
    for plan in plans:
        assert f"| {plan} | 1 |" in printed
        assert f"| {plan} | 3 |" in printed
    assert "two lanes / one" in printed


def test_a_folder_without_a_model_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compute.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("loadtest.compute: ")


def test_the_floor_is_arithmetic_or_weights_and_always_the_rows(small_artifact: Path) -> None:
    work = read_work(small_artifact)
    weights = 13 * 64 + 64 * 32 + 32 * 16 + (16 + 351) * 64 + 64 * 32 + 32
    assert work == Work(2 * (weights + 351 * 16), 26, 4 * weights)
    slow_memory = Peak(sgemm_gflops=1e9, stream_gb_s=1.0, row_ns=0.0)
    assert work.floor_s(slow_memory, 1) == pytest.approx(work.weight_bytes / 1e9)
    slow_cores = Peak(sgemm_gflops=1.0, stream_gb_s=1e9, row_ns=10.0)
    assert work.floor_s(slow_cores, 100) == pytest.approx(100 * (work.flops / 1e9 + 26e-8))
