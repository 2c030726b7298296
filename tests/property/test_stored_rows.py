"""Rows are stored bit for bit as FBGEMM, and so the exporter, stores them."""

import fbgemm_gpu  # noqa: F401  # registers the operators
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.dlrm.stored_rows import UnstorableError, stored_rows

BITS = {"int8": 8, "int4": 4, "int2": 2}


def by_fbgemm(values: np.ndarray, bits: int) -> np.ndarray:
    quantise = torch.ops.fbgemm.FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf
    stored = quantise(torch.from_numpy(values), bits).numpy()
    return np.hstack([stored[:, -4:], stored[:, :-4]])  # a served row begins with scale and bias


@pytest.mark.parametrize("kind", BITS)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 70),
    dim=st.sampled_from([8, 16, 64, 72]),
    spread=st.sampled_from([0.0, 1e-9, 1e-6, 1e-3, 0.4, 10.0, 1e4]),
    centre=st.sampled_from([0.0, 1e-7, -0.3, 100.0, -3e4]),
)
@settings(max_examples=40)
def test_quantised_rows_are_fbgemm_s(
    kind: str, seed: int, rows: int, dim: int, spread: float, centre: float
) -> None:
    random = np.random.default_rng(seed)
    values = (random.uniform(-spread, spread, (rows, dim)) + centre).astype(np.float32)
    values[:, 0] = random.choice([0.0, centre], rows)
    expected = by_fbgemm(values, BITS[kind])
    stored = stored_rows(kind, values, expected.shape[1] + 3)
    assert np.array_equal(stored[:, :-3], expected)
    assert not stored[:, -3:].any()


def test_more_rows_than_a_step_are_stored_alike() -> None:
    values = np.random.default_rng(0).normal(size=(5000, 8)).astype(np.float32)
    assert np.array_equal(stored_rows("int8", values, 12), by_fbgemm(values, 8))


def test_half_and_single_precision_are_stored_as_they_are() -> None:
    values = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)
    single, half = stored_rows("fp32", values, 24), stored_rows("fp16", values, 12)
    assert np.array_equal(single.view(np.float32), values)
    assert np.array_equal(half.view(np.float16), values.astype(np.float16))


@pytest.mark.parametrize("kind", ["fp16", "int8", "int4"])
@pytest.mark.parametrize("value", [7e4, -7e4, 3e38])
def test_what_fp16_cannot_hold_is_refused_by_its_row(kind: str, value: float) -> None:
    values = np.zeros((3000, 4), np.float32)
    values[2500, 1] = value * (256 if kind != "fp16" and 0 < value < 1e5 else 1)
    values[2500, 1] *= 256 if kind == "int8" and 0 < value < 1e5 else 1
    with pytest.raises(UnstorableError, match=r"beyond FP16's \+-65504") as caught:
        stored_rows(kind, values, 32)
    assert caught.value.place == 2500
