"""What cannot be measured is named, with what can."""

from pathlib import Path

import pytest

from loadtest import compute


def test_an_artifact_that_is_not_there_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compute.main([str(tmp_path / "none")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"loadtest.compute: {tmp_path / 'none'} does not exist; make one with")


def test_a_backend_that_there_is_not_is_told_which_there_are(
    small_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compute.main([str(small_artifact), "--only", "nonsense"]) == 1
    said = capsys.readouterr().err
    assert "loadtest.compute: nonsense: no such backend; there are " in said
    assert "native_dlrm:compiled" in said
