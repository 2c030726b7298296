"""What holds of the modules holds of what is compiled of them."""

import subprocess
import sys

import pytest

from app.compiled.build import compile_sources
from app.compiled.modules import ROOT, place

SUITES = (
    "tests/abuse",
    "tests/contract",
    "tests/numerics/test_sharing.py",
    "tests/property/test_frontends.py",
    "tests/property/test_ids.py",
    "tests/property/test_jagged.py",
    "tests/unit/test_backends_jagged.py",
    "tests/unit/test_codec_predictor.py",
    "tests/unit/test_ids.py",
    "tests/unit/test_turnstile.py",
    "tests/property/test_queue_model.py",
    "tests/property/test_codecs.py",
)
PATTERNS = (
    "tests/unit/test_codec*.py",
    "tests/unit/test_frontends*.py",
    "tests/unit/test_http*.py",
    "tests/unit/test_oip*.py",
    "tests/unit/test_ranking*.py",
    "tests/unit/test_scheduler*.py",
    "tests/unit/test_tls*.py",
    "tests/unit/test_grpc*.py",
    "tests/unit/test_nghttp2*.py",
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_suites_pass_over_compiled_modules() -> None:
    pytest.importorskip("mypyc")
    compile_sources(place())
    suites = [*SUITES, *(str(path) for pattern in PATTERNS for path in sorted(ROOT.glob(pattern)))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.compiled.plugin"]
    done = subprocess.run(
        [*command, "-m", "not slow", *suites],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
