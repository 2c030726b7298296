"""What a kernel has to agree with is itself right, for every kind of rows."""

from typing import get_args

import numpy as np
import pytest

from backends.dlrm.forward.model import Kind
from backends.native_dlrm.reference import Reference
from tests.fixtures.random_dlrm import Shape, make_dlrm, make_inputs


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("kind", get_args(Kind))
def test_the_reference_scores_as_the_definition_says(kind: Kind, mean: bool) -> None:
    shape = Shape((kind,) * 3, 7, mean=mean, padding=5)
    model = make_dlrm(shape)
    for rows, longest in ((0, 3), (1, 0), (40, 0), (40, 4)):
        inputs = make_inputs(shape, rows, longest=longest)
        scores = Reference(model.dlrm).run(inputs)
        assert scores.shape == (rows,)
        np.testing.assert_allclose(scores, model.expected(inputs), rtol=0, atol=1e-12)
    assert scores.std() > 0.02


def test_rounded_weights_move_a_score_a_little() -> None:
    shape = Shape(("fp32",) * 3, 16)
    model, inputs = make_dlrm(shape), make_inputs(shape, 40)
    gap = np.abs(Reference(model.dlrm, half=True).run(inputs) - model.expected(inputs)).max()
    assert 1e-6 < gap < 1e-2
