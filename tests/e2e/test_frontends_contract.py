"""What holds of every transport holds of every transport in front ends."""

import subprocess
import sys

import pytest

from app.compiled.modules import ROOT


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_contract_suite_passes_over_front_ends() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--front-ends=2", "--timeout=120"]
    # Which backend answers is the engine's business: one that computes in NumPy, one in PyTorch.
    others = ["-k", "not native_backend", "-m", "not slow and not clients", "tests/contract"]
    done = subprocess.run(
        [*command, *others], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
