"""Paste the lines of a banner, as its reader would."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


def check_lines(lines: Sequence[str], folder: Path) -> None:
    """Run every line in ``folder``, all at once; each must print scores and no error."""
    running = [
        subprocess.Popen(
            ["bash", "-c", line],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in lines
    ]
    for process in running:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert "default" in output
        assert "error" not in output
