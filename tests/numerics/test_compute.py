"""``python -m loadtest.compute``: every plan beside the artifact's own."""

import subprocess
import sys
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


def test_a_folder_without_a_model_is_refused_in_lines_that_say_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compute.main([str(tmp_path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"loadtest.compute: no backend loads {tmp_path}"
    assert all(line.startswith("loadtest.compute: skipped ") for line in lines[:-1])


# What a venv without the extra is like: the modules are not there.
WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
from loadtest import compute
sys.exit(compute.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("missing", "measured", "skipped"),
    [
        pytest.param(
            ["numba", "onnxruntime"],
            "torch_dlrm:artifact",
            "native_dlrm:numba",
            marks=pytest.mark.slow,
        ),
        (["torch", "fbgemm_gpu", "onnxruntime"], "native_dlrm:numba", "torch_dlrm:artifact"),
    ],
)
def test_what_is_not_installed_is_skipped_with_a_line(
    small_artifact: Path, missing: list[str], measured: str, skipped: str
) -> None:
    arguments = [str(small_artifact), "--rows", "1", "--rounds", "1"]
    command = [sys.executable, "-c", WITHOUT.format(missing=missing), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"| {measured} | 1 |" in done.stdout
    assert f"| {skipped} |" not in done.stdout
    assert f"loadtest.compute: skipped {skipped}: " in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_asked_for_by_name_is_not_skipped(
    small_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compute.main([str(small_artifact), "--only", "onnx_dlrm"]) == 1
    assert capsys.readouterr().err.startswith("loadtest.compute: onnx_dlrm: ")


def test_the_floor_is_arithmetic_or_weights_and_always_the_rows(small_artifact: Path) -> None:
    work = read_work(small_artifact)
    weights = 13 * 64 + 64 * 32 + 32 * 16 + (16 + 351) * 64 + 64 * 32 + 32
    assert work == Work(2 * (weights + 351 * 16), 26, 4 * weights)
    slow_memory = Peak(sgemm_gflops=1e9, stream_gb_s=1.0, row_ns=0.0)
    assert work.floor_s(slow_memory, 1) == pytest.approx(work.weight_bytes / 1e9)
    slow_cores = Peak(sgemm_gflops=1.0, stream_gb_s=1e9, row_ns=10.0)
    assert work.floor_s(slow_cores, 100) == pytest.approx(100 * (work.flops / 1e9 + 26e-8))
