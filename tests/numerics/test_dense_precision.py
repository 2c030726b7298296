"""Dense layers in fewer bits: near the FP32 scores, or refused with the reason."""

from pathlib import Path

import numpy as np
import pytest

from backends.compiled.build import NoKernelError
from backends.dlrm.forward.compiled import CompiledWeights, Kernel
from backends.dlrm.forward.compiler import load_library
from backends.torch_dlrm.export.golden import OUTPUT, Golden
from scheduler.backend import Backend
from scheduler.errors import LoadError
from scheduler.types import Batch
from tests.fixtures.artifacts import load, take_rows
from tests.fixtures.native import load_native
from tests.fixtures.random_dlrm import Shape, make_dlrm


def scores(
    backend: Backend, golden: Golden, rows: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    batch = Batch((take_rows(golden.request(), 0, rows),))
    return np.asarray(backend.prepare(batch)()[OUTPUT], np.float64)


def test_bf16_layers_move_scores_a_little_and_no_row_by_its_neighbours(
    small_artifact: Path, golden: Golden
) -> None:
    backend = load(small_artifact, dense="bf16")
    assert backend.spec.properties["dense"] == "bf16"
    got, expected = scores(backend, golden, 128), np.asarray(golden.served[OUTPUT], np.float64)
    assert 1e-5 < np.abs(got - expected).max() < 0.03
    # A sum in another order may round to the next BF16.
    assert np.abs(scores(backend, golden, 5) - got[:5]).max() < 0.01


def test_fp16_weights_move_scores_less(
    small_artifact: Path, kernel_cache: Path, golden: Golden
) -> None:
    try:
        load_library(kernel_cache)
    except NoKernelError as error:
        pytest.skip(str(error))
    backend = load_native(small_artifact, kernel_cache, dense="fp16")
    assert backend.spec.properties["dense"] == "fp16"
    got, expected = scores(backend, golden, 128), np.asarray(golden.served[OUTPUT], np.float64)
    assert 1e-6 < np.abs(got - expected).max() < 3e-3
    assert np.abs(scores(backend, golden, 5) - got[:5]).max() <= 1e-6


def test_rounded_layers_without_the_plan_for_them_are_refused(
    small_artifact: Path, kernel_cache: Path
) -> None:
    with pytest.raises(
        LoadError, match="--dense bf16 needs the lean plan: asked for: --plan artifact"
    ):
        load(small_artifact, plan="artifact", dense="bf16")
    with pytest.raises(LoadError, match="--dense fp16 needs the compiled kernel: --kernel numba"):
        load_native(small_artifact, kernel_cache, kernel="numba", dense="fp16")


def test_weights_beyond_fp16_are_refused(kernel_cache: Path) -> None:
    try:
        kernel = Kernel(load_library(kernel_cache))
    except NoKernelError as error:
        pytest.skip(str(error))
    dlrm = make_dlrm(Shape(("fp32",) * 2, 8)).dlrm
    dlrm.dense[0].weight[0, 0] = 70000
    with pytest.raises(NoKernelError, match="a dense weight is over 65504"):
        CompiledWeights(dlrm, kernel, half=True)


@pytest.mark.parametrize("dense", ["fp16", "int8"])
def test_an_unknown_precision_is_refused_before_a_file_is_read(dense: str) -> None:
    with pytest.raises(ValueError, match=f"dense must be one of fp32, bf16, got '{dense}'"):
        load(Path("nowhere"), dense=dense)
