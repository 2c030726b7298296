"""The CUDA source of the interaction, compiled for the host and run by one thread a block."""

import ctypes
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.interaction import SHAPES, assert_interaction, vectors_of

COMPILER = shutil.which("c++")
# A block of one thread needs no barrier, and its shared memory is anyone's.
HOST = """
struct Position { unsigned x; };
static Position blockIdx{0}, threadIdx{0}, blockDim{1};
float vectors[1 << 16];
#define __global__
#define __shared__
#define __syncthreads()
%s
extern "C" void run(int rows, const float* dense, const float* pooled, float* out,
                    int features, int dim) {
  for (blockIdx.x = 0; blockIdx.x < static_cast<unsigned>(rows); ++blockIdx.x)
    interact(dense, pooled, out, features, dim);
}
"""

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernel as a library of the host."""
    folder: Path = tmp_path_factory.mktemp("interaction")
    source = files("backends.kernels").joinpath("interaction.cu").read_text(encoding="utf-8")
    (folder / "interaction.cpp").write_text(HOST % source)
    command = [str(COMPILER), "-O1", "-shared", "-fPIC", "-Wall", "-Wno-unknown-pragmas",
               "-o", "interaction.so", "interaction.cpp"]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    return ctypes.CDLL(str(folder / "interaction.so"))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_cuda_source_gives_the_products_of_every_pair(
    compiled: ctypes.CDLL, shape: tuple[int, int, int]
) -> None:
    rows, features, dim = shape
    dense, pooled = vectors_of(rows, features, dim)
    out = np.full((rows, dim + (features + 1) * features // 2), np.nan, np.float32)
    pointers = [
        array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for array in (dense, pooled, out)
    ]
    compiled.run(rows, *pointers, features, dim)
    assert_interaction(out, dense, pooled)
