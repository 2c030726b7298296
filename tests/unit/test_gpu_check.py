"""``make gpu-check`` reports whatever its parts do, and none of them stops another."""

import sys
import time
from pathlib import Path

import pytest

from loadtest.gpu_check.__main__ import compare, main, run
from loadtest.gpu_check.parts import ARTIFACT, LEAN, Part, paths

SUITE = """<testsuites><testsuite tests="3" failures="1" errors="0" skipped="1">
<testcase name="test_a"/><testcase name="test_b"><failure message="off by 0.1"/></testcase>
<testcase name="test_c"><skipped message="no compiler"/></testcase></testsuite></testsuites>"""


def part(code: str, timeout_s: float = 60.0, report: Path | None = None) -> Part:
    return Part("it", "figures", (sys.executable, "-c", code), timeout_s, report)


def soon() -> float:
    return time.monotonic() + 60


def test_the_last_line_of_a_part_is_its_figures() -> None:
    done = run(part('print(\'noise\'); print(\'{"error": 1e-7, "graphs": "17"}\')'), soon())
    assert (done["state"], done["error"], done["note"]) == ("passed", 1e-7, "17")


@pytest.mark.parametrize(
    ("code", "note"),
    [
        ("raise SystemExit('out of luck')", "out of luck"),
        ("import os; os.abort()", ""),
        ("print('{\"error\": 2e-6}')", ""),
    ],
)
def test_a_part_that_fails_or_scores_otherwise_is_told(code: str, note: str) -> None:
    done = run(part(code), soon())
    assert (done["state"], done["note"]) == ("FAILED", note)


def test_a_part_that_hangs_ends_with_what_it_started() -> None:
    code = (
        "import subprocess as s, sys; s.run([sys.executable, '-c', 'import time; time.sleep(99)'])"
    )
    done = run(part(code, timeout_s=1.0), soon())
    assert (done["state"], done["note"]) == ("FAILED", "no end within 1 s")


def test_parts_beyond_the_time_are_skipped() -> None:
    done = run(part("raise SystemExit(1)"), time.monotonic())
    assert (done["state"], done["note"]) == ("skipped", "out of time")


def test_a_suite_is_told_by_its_report(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(SUITE)
    done = run(part("raise SystemExit(1)", report=tmp_path / "report.xml"), soon())
    assert done["state"] == "FAILED"
    assert done["note"] == "1 passed, 1 skipped, 1 failed; test_b: off by 0.1"


def test_every_way_to_serve_is_compared_with_the_artifact() -> None:
    ways = [one.name for one in paths(Path("host"), Path("device"), 1.0)]
    assert ways[0] == ARTIFACT
    assert set(LEAN) < set(ways)
    results = [
        {"part": ARTIFACT, "p50_us_100": 200.0, "samples_s_100": 1e5},
        {"part": "lean", "p50_us_100": 100.0, "samples_s_100": 3e5},
        {"part": "gRPC: lean", "p50_us_100": 300.0},
    ]
    compare(results)
    assert (results[1]["p50 / artifact"], results[1]["samples / artifact"]) == (0.5, 3.0)
    assert "p50 / artifact" not in results[2]


def test_without_a_device_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    assert main(["--out", str(tmp_path)]) == 2
    assert "PyTorch finds no CUDA device here" in capsys.readouterr().err
