"""Finite values of any size score as they do in float64, also where weights are whole numbers."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from backends.compiled.build import NoKernelError
from backends.dlrm.forward.compiled import CompiledForward, CompiledWeights, Kernel
from backends.dlrm.forward.model import Dlrm
from backends.dlrm.gather import DENSE
from backends.native_dlrm.choice import Lane
from backends.native_dlrm.jit import keep_compiled_in
from tests.fixtures.random_dlrm import Shape, make_dlrm, make_inputs

Make = Callable[[Dlrm], Lane]
SHAPE = Shape(("int8",) * 3, 16, dense=(40,), over=(96, 8), sigmoid=False)


@pytest.fixture(params=["avx2", "avx512", "numba"])
def make(request: pytest.FixtureRequest, kernel_cache: Path) -> Make:
    if request.param != "numba":
        return compiled(request.getfixturevalue("library"), request.param)
    keep_compiled_in(kernel_cache)
    from backends.native_dlrm.forward import Forward, Weights  # noqa: PLC0415

    return lambda dlrm: Forward(Weights(dlrm))


def compiled(library: ctypes.CDLL, instructions: str) -> Make:
    try:
        kernel = Kernel(library, 1 if instructions == "avx2" else 2)
    except NoKernelError as error:
        pytest.skip(str(error))
    return lambda dlrm: CompiledForward(CompiledWeights(dlrm, kernel))


@pytest.mark.parametrize("size", [1e10, 1e27, 1e29, 1e34])
def test_large_finite_values_score_as_in_float64(make: Make, size: float) -> None:
    for seed in range(4):
        model = make_dlrm(SHAPE, seed=seed)
        lane = make(model.dlrm)
        for rows in (1, 2, 3, 5):
            inputs = make_inputs(SHAPE, rows)
            inputs[DENSE] = inputs[DENSE].astype(np.float32) * np.float32(size)
            scores, expected = lane.run(inputs), model.expected(inputs)
            assert (np.abs(scores - expected) <= 1e-5 * np.abs(expected).max()).all()


def test_one_large_row_leaves_the_others_within_rounding(make: Make) -> None:
    model, inputs = make_dlrm(SHAPE), make_inputs(SHAPE, 3)
    lane = make(model.dlrm)
    before = lane.run(inputs)
    inputs[DENSE][1] = 1e30
    after = lane.run(inputs)
    assert np.isfinite(after).all()
    assert np.abs(after - before)[[0, 2]].max() <= 2e-6
