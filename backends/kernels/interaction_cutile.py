"""The interaction in cuTile, on PyTorch or CuPy arrays: one block a row. Opt-in.

Which GPU, driver and compiler (``tileiras``) go together changes with every release of CUDA, so
none is looked up here: ``why_off`` runs one row and reports what the library says.
"""

from typing import Any

import cuda.tile as ct

from backends.kernels.devices import arrays_on_gpu, current_stream, empty_like
from backends.kernels.sizes import power_of_two, sizes_of


def why_off() -> str:
    """Return why the kernel does not run here, or ""; compiles and runs it once."""
    arrays = arrays_on_gpu()
    if arrays is None:
        return "neither PyTorch nor CuPy, so far as imported, finds a CUDA device"
    try:
        interact(arrays.zeros((1, 16)), arrays.zeros((1, 2, 16)))
        arrays.wait()
    except (ct.TileError, RuntimeError, OSError) as error:
        return f"this GPU, driver and CUDA toolkit do not run it: {type(error).__name__}: {error}"
    return ""


def interact(dense: Any, pooled: Any) -> Any:
    """Return (rows, dim + pairs) on the current stream. Raises ValueError for unfit shapes."""
    sizes = sizes_of(dense.shape, pooled.shape)
    out = empty_like(dense, (sizes.rows, sizes.width))
    if sizes.rows:
        blocks = power_of_two(sizes.features + 1), power_of_two(sizes.dim)
        arguments = (dense, pooled, out, sizes.features, sizes.dim, *blocks)
        ct.launch(current_stream(dense), (sizes.rows,), kernel, arguments)
    return out


@ct.kernel  # type: ignore[untyped-decorator]  # cuTile has no types
def kernel(  # noqa: PLR0913, PLR0917  # a kernel takes its sizes one by one
    dense: ct.Array,
    pooled: ct.Array,
    out: ct.Array,
    features: ct.Constant[int],
    dim: ct.Constant[int],
    block_vectors: ct.Constant[int],
    block_dim: ct.Constant[int],
) -> None:
    """Compute one row; blocks are powers of two that hold the vectors and a vector."""
    row = ct.bid(0)
    vectors = features + 1
    vector = ct.arange(block_vectors, dtype=ct.int32)
    column = ct.arange(block_dim, dtype=ct.int32)
    i, j = vector[:, None], vector[None, :]
    first = ct.gather(dense, (row, column), mask=column < dim)
    ct.scatter(out, (row, column), first, mask=column < dim)
    # Beyond the last feature or column nothing is loaded but zeros: the bounds are checked.
    rest = ct.gather(pooled, (row, i - 1, column[None, :]), mask=i > 0)
    every = ct.where(i == 0, first[None, :], rest)
    zeros = ct.full((block_vectors, block_vectors), 0.0, ct.float32)
    products = ct.mma(every, ct.transpose(every), zeros)
    pair = i * (2 * vectors - i - 1) // 2 + j - i - 1
    ct.scatter(out, (row, dim + pair), products, mask=(i < j) & (j < vectors))
