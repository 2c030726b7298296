"""What computes a model is said, proven, and falls back where it must."""

import logging
from pathlib import Path

import numpy as np
import pytest

from backends.compiled import build
from backends.compiled.build import NoKernelError
from backends.dlrm.forward.compiled import CompiledForward, CompiledWeights, Kernel
from backends.dlrm.forward.compiler import load_library
from backends.native_dlrm.choice import doubt
from backends.native_dlrm.reference import Reference
from backends.native_dlrm.source import find_source
from backends.torch_dlrm.export.golden import OUTPUT, Golden
from scheduler.errors import LoadError
from scheduler.types import Batch
from tests.fixtures.native import load_native
from tests.fixtures.random_dlrm import Shape, make_dlrm


@pytest.mark.parametrize("kernel", ["compiled", "numba"])
def test_either_kernel_gives_the_artifacts_scores_and_is_named(
    small_artifact: Path, kernel_cache: Path, golden: Golden, kernel: str
) -> None:
    try:
        load_library(kernel_cache)
    except NoKernelError as error:
        pytest.skip(str(error))
    backend = load_native(small_artifact, kernel_cache, lanes=1, kernel=kernel)
    scores = backend.prepare(Batch((golden.request(),)))()[OUTPUT].astype(np.float64)
    assert abs(scores - golden.served[OUTPUT].astype(np.float64)).max() <= 1e-6
    assert backend.spec.properties["plan"] == kernel
    assert ("instructions" in backend.spec.properties) == (kernel == "compiled")


def test_without_a_compiler_numba_computes_and_the_log_says_why(
    small_artifact: Path, kernel_cache: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(build, "_COMPILERS", ())
    monkeypatch.setattr(
        "backends.native_dlrm.choice.load_library", lambda _: load_library(tmp_path)
    )
    with caplog.at_level(logging.WARNING):
        backend = load_native(small_artifact, kernel_cache, lanes=1)
    assert backend.spec.properties["plan"] == "numba"
    assert "no C compiler found" in backend.spec.properties["plan_reason"]
    assert [record.message for record in caplog.records if "Numba computes" in record.message]
    with pytest.raises(LoadError, match=r"--kernel compiled: no C compiler found"):
        load_native(small_artifact, kernel_cache, lanes=1, kernel="compiled")


def test_a_kernel_that_computes_another_model_is_doubted(
    small_artifact: Path, kernel_cache: Path
) -> None:
    try:
        kernel = Kernel(load_library(kernel_cache))
    except NoKernelError as error:
        pytest.skip(str(error))
    right = find_source(str(small_artifact), verify=False).dlrm
    for half in (False, True):
        lane = CompiledForward(CompiledWeights(right, kernel, half=half))
        assert doubt(lane, Reference(right, half=half), right) == ""
        assert "probe rows differ by" in doubt(lane, Reference(right, half=not half), right)
    shape = Shape(("int8",) * 3, 16)
    ours, other = make_dlrm(shape).dlrm, make_dlrm(shape, seed=8).dlrm
    lane = CompiledForward(CompiledWeights(other, kernel))
    assert "probe rows differ by" in doubt(lane, Reference(ours), ours)
