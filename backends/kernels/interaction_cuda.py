"""The interaction in CUDA C++, on CuPy arrays: for a CUDA process without PyTorch.

CuPy compiles it at its first use, with NVRTC alone. Triton would need PyTorch, cuTile its own
compiler and a recent driver; this runs wherever CuPy does.
"""

from functools import cache
from importlib.resources import files
from typing import Any

import cupy

from backends.kernels.sizes import sizes_of

_THREADS = 128
_SHARED_BYTES = 48 * 1024  # what every GPU gives a block without asking


def why_off() -> str:
    """Return why the kernel does not run here, or ""."""
    return "" if cupy.cuda.is_available() else "CuPy finds no CUDA device"


def interact(dense: Any, pooled: Any) -> Any:
    """Return (rows, dim + pairs) on the current stream.

    Raises ValueError for shapes that do not fit each other or the shared memory of a block.
    """
    sizes = sizes_of(dense.shape, pooled.shape)
    shared_bytes = 4 * (sizes.features + 1) * (sizes.dim + 1)
    if shared_bytes > _SHARED_BYTES:
        raise ValueError(f"a row takes {shared_bytes} bytes of shared memory, of {_SHARED_BYTES}")
    out = cupy.empty((sizes.rows, sizes.width), cupy.float32)
    if sizes.rows:
        arguments = (
            cupy.ascontiguousarray(dense, cupy.float32),
            cupy.ascontiguousarray(pooled, cupy.float32),
            out,
            cupy.int32(sizes.features),
            cupy.int32(sizes.dim),
        )
        _kernel()((sizes.rows,), (_THREADS,), arguments, shared_mem=shared_bytes)
    return out


@cache
def _kernel() -> Any:
    source = files("backends.kernels").joinpath("interaction.cu").read_text(encoding="utf-8")
    return cupy.RawKernel(source, "interact")
