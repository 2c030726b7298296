"""What holds of every transport holds of every transport in front ends."""

import subprocess
import sys

import pytest

from app.compiled.modules import ROOT

FOLDER = "tests/contract"
# Half of the work, beside which the other half runs.
LARGEST = f"{FOLDER}/test_bad_input.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_contract_suite_passes_over_front_ends() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--front-ends=2", "--timeout=120"]
    # Which backend answers is the engine's business: one that computes in NumPy, one in PyTorch.
    command += ["-k", "not native_backend", "-m", "not slow and not clients"]
    halves = [
        subprocess.Popen([*command, *half], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for half in ([LARGEST], [FOLDER, f"--ignore={LARGEST}"])
    ]
    printed = [half.communicate()[0] for half in halves]
    assert [half.returncode for half in halves] == [0, 0], "".join(each[-4000:] for each in printed)
