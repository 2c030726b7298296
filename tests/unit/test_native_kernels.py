"""Numba's forward, with rows of every kind, against the same in float64."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from backends.dlrm.forward.model import Kind
from backends.native_dlrm.jit import keep_compiled_in
from tests.fixtures.random_dlrm import Shape, make_dlrm, make_inputs


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("sigmoid", [False, True])
def test_a_forward_is_that_of_float64(
    kernel_cache: Path, kind: Kind, mean: bool, sigmoid: bool
) -> None:
    keep_compiled_in(kernel_cache)
    from backends.native_dlrm.forward import Forward, Weights  # noqa: PLC0415

    for padding in (0, 3, 16):
        shape = Shape((kind,) * 3, 6, mean=mean, sigmoid=sigmoid, padding=padding)
        model = make_dlrm(shape)
        inputs = make_inputs(shape, 300)
        expected = model.expected(inputs)
        assert np.std(expected) > 0.05
        scores = Forward(Weights(model.dlrm)).run(inputs)
        scale = 1.0 if sigmoid else max(1.0, float(np.abs(expected).max()))
        assert np.abs(scores - expected).max() <= 1e-6 * scale
