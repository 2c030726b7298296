"""The lookup in Triton against float64: on a GPU, or in the interpreter.

``test_interaction`` starts the process in which the interpreter runs.
"""

import importlib.util
import os

import numpy as np
import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from backends.dlrm.gather import IDS
from backends.kernels.lookup_triton import Rows, pool
from backends.torch_dlrm.gpu.tables import FbgemmLookup, TritonLookup, place
from tests.cuda.models import make_inputs, make_model
from tests.fixtures.fake_gpu import FakeGpu

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
runs = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="no CUDA device, and no interpreter"
)


@runs
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize(("features", "rows", "dim", "row_bytes"), [(3, 5, 64, 80), (2, 7, 12, 16)])
def test_it_pools_what_the_rows_mean(
    features: int, rows: int, dim: int, row_bytes: int, mean: bool
) -> None:
    random, table_rows = np.random.default_rng(rows), 50
    stored = np.full((features, table_rows, row_bytes), 0x55, np.uint8)
    header = random.uniform(-0.1, 0.1, (features, table_rows, 2)).astype(np.float16)
    stored[..., :4] = header.view(np.uint8)
    stored[..., 4 : 4 + dim] = random.integers(0, 256, (features, table_rows, dim))
    wide = header.astype(np.float64)
    meant = stored[..., 4 : 4 + dim] * wide[..., :1] + wide[..., 1:]
    lengths = random.integers(0, 4, (features, rows)).astype(np.int32)
    ids = random.integers(0, table_rows, int(lengths.sum())).astype(np.int32)
    bags = iter(np.split(ids, np.cumsum(lengths))[:-1])
    wanted = np.zeros((rows, features, dim))
    for feature in range(features):
        for row in range(rows):
            bag = meant[feature][next(bags)]
            wanted[row, feature] = bag.sum(0) / (max(len(bag), 1) if mean else 1)
    starts = np.arange(features, dtype=np.int64) * table_rows * row_bytes
    block = torch.from_numpy(stored.reshape(-1)).to(DEVICE)
    tables = Rows(block, torch.from_numpy(starts).to(DEVICE), row_bytes, dim, mean)
    # More ids than are used, as a graph's static buffer has.
    spare = np.concatenate([ids, np.full(9, 2**31 - 1, np.int32)])
    flat = torch.from_numpy(lengths.reshape(-1)).to(DEVICE)
    ours = pool(tables, flat, torch.from_numpy(spare).to(DEVICE)).cpu().numpy()
    np.testing.assert_allclose(ours, wanted.reshape(rows, -1), rtol=0, atol=2e-5)
    assert pool(tables, flat[:0], torch.from_numpy(spare[:0]).to(DEVICE)).shape == (
        0, features * dim,
    )  # fmt: skip


@pytest.mark.skipif(not INTERPRETED, reason="tests/cuda has the like for a device")
def test_it_pools_what_fbgemm_pools() -> None:
    dlrm, gpu = make_model(features=4, dim=16, rows=50), FakeGpu()
    placed = place(dlrm.tables, gpu, managed=False)
    inputs = make_inputs(dlrm, 6, seed=1)
    tensors = [torch.from_numpy(inputs[f"{IDS}.{name}"]) for name in ("lengths", "values")]
    ours = TritonLookup(dlrm.tables, placed, gpu)(*tensors)
    theirs = FbgemmLookup(dlrm.tables, placed, gpu)(*tensors)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=0, atol=1e-6)
