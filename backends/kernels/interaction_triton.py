"""The interaction in Triton, on PyTorch tensors: one program a row.

Triton's launcher asks PyTorch for device and stream, so this is no kernel for a process without
it. On the CPU it runs only in Triton's interpreter (``TRITON_INTERPRET=1`` when this is imported).
"""

import torch
import triton
import triton.language as tl

from backends.kernels.sizes import power_of_two, sizes_of


def why_off() -> str:
    """Return why the kernel does not run here, or ""."""
    if triton.knobs.runtime.interpret or torch.cuda.is_available():
        return ""
    return "PyTorch finds no CUDA device, and Triton has none but its interpreter for the CPU"


def interact(dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
    """Return (rows, dim + pairs) on the current stream. Raises ValueError for unfit shapes."""
    sizes = sizes_of(dense.shape, pooled.shape)
    out = dense.new_empty((sizes.rows, sizes.width))
    if sizes.rows:
        _kernel[(sizes.rows,)](
            dense.contiguous(),
            pooled.contiguous(),
            out,
            sizes.features,
            sizes.dim,
            power_of_two(sizes.features + 1),
            power_of_two(sizes.dim),
        )
    return out


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def _kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917  # so Triton wants it
    dense,
    pooled,
    out,
    FEATURES: tl.constexpr,  # noqa: N803
    DIM: tl.constexpr,  # noqa: N803
    BLOCK_VECTORS: tl.constexpr,  # noqa: N803
    BLOCK_DIM: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    vectors = FEATURES + 1
    to = out + row * (DIM + vectors * FEATURES // 2)
    vector = tl.arange(0, BLOCK_VECTORS)
    column = tl.arange(0, BLOCK_DIM)
    first = tl.load(dense + row * DIM + column, mask=column < DIM, other=0.0)
    tl.store(to + column, first, mask=column < DIM)
    at = pooled + (row * FEATURES + vector[:, None] - 1) * DIM + column[None, :]
    known = (vector[:, None] > 0) & (vector[:, None] < vectors) & (column[None, :] < DIM)
    rest = tl.load(at, mask=known, other=0.0)
    every = tl.where(vector[:, None] == 0, first[None, :], rest)
    # Not TF32, whose ten bits would show in the scores.
    products = tl.dot(every, tl.trans(every), input_precision="ieee")
    i = vector[:, None]
    j = vector[None, :]
    pair = i * (2 * vectors - i - 1) // 2 + j - i - 1
    tl.store(to + DIM + pair, products, mask=(i < j) & (j < vectors))
