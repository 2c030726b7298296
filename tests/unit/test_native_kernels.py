"""Numba's forward, with rows of every kind, against the same in float64."""

import shutil
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from backends.dlrm.forward.model import Kind
from backends.dlrm.gather import DENSE
from backends.native_dlrm.jit import keep_compiled_in, kernel
from tests.fixtures.random_dlrm import Shape, make_dlrm, make_inputs


def _plus_one(number: int) -> int:
    return number + 1


def test_a_kernel_that_cannot_be_kept_computes_all_the_same(
    tmp_path: Path, kernel_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    keep_compiled_in(folder)
    try:
        compiled = kernel(_plus_one)
    finally:
        keep_compiled_in(kernel_cache)
    shutil.rmtree(folder)
    folder.touch()
    assert compiled(1) == 2
    assert caplog.records
    assert all(str(folder) in record.getMessage() for record in caplog.records)


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


@pytest.mark.parametrize("sigmoid", [False, True])
def test_a_forward_of_one_row_is_that_of_float64(kernel_cache: Path, sigmoid: bool) -> None:
    keep_compiled_in(kernel_cache)
    from backends.native_dlrm.forward import Forward, Weights  # noqa: PLC0415
    from backends.native_dlrm.layers import PACKED  # noqa: PLC0415

    shapes = [
        *(Shape((kind,) * 3, 6, mean=kind == "fp16", sigmoid=sigmoid) for kind in get_args(Kind)),
        Shape(("int8",) * 26, 64, 13, dense=(512, 65), over=(512, 130), sigmoid=sigmoid),
        Shape(("int8",), 16, dense=(), over=(), sigmoid=sigmoid),
    ]
    for number, shape in enumerate(shapes):
        model = make_dlrm(shape, seed=number)
        weights, inputs = Weights(model.dlrm), make_inputs(shape, 1)
        assert weights.packed.table[:, PACKED].all()
        lane, expected = Forward(weights), model.expected(inputs)
        # Twice: nothing of a batch before is left, be it of one row or of many.
        for _ in range(2):
            scores = lane.run(inputs)
            assert scores.shape == (1,)
            assert scores.dtype == np.float32
            assert np.abs(scores - expected).max() <= 1e-6 * max(1, np.abs(expected).max())
            assert np.isnan(lane.run({**inputs, DENSE: np.full_like(inputs[DENSE], np.nan)})).all()
            lane.run(make_inputs(shape, 5))


def test_weights_of_many_sizes_are_read_as_they_are(kernel_cache: Path) -> None:
    keep_compiled_in(kernel_cache)
    from backends.native_dlrm.forward import Forward, Weights  # noqa: PLC0415
    from backends.native_dlrm.layers import PACKED  # noqa: PLC0415

    shape = Shape(("int8",) * 3, 16, over=(96, 8))
    model = make_dlrm(shape)
    model.dlrm.over[1].weight[3] *= 1e-6
    model.dlrm.over[1].weight[3, 5] = 1
    weights = Weights(model.dlrm)
    assert (weights.packed.table[:, PACKED] != 0).tolist() == [True, True, True, False]
    for rows in (1, 2, 3):
        inputs = make_inputs(shape, rows)
        assert np.abs(Forward(weights).run(inputs) - model.expected(inputs)).max() <= 1e-6


def test_batches_of_every_height_are_those_of_float64(kernel_cache: Path) -> None:
    keep_compiled_in(kernel_cache)
    from backends.native_dlrm.forward import Forward, Weights  # noqa: PLC0415

    shape = Shape(("int8",) * 4, 64, 13, dense=(96, 65), over=(96, 33))
    model = make_dlrm(shape)
    lane = Forward(Weights(model.dlrm))
    for rows in (0, *range(1, 30), 111, 112, 113, 250):
        inputs = make_inputs(shape, rows)
        expected, scores = model.expected(inputs), lane.run(inputs)
        assert scores.shape == (rows,)
        assert (np.abs(scores - expected) <= 1e-6).all()
