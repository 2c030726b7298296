"""The pooled rows of INT8 tables in Triton, on PyTorch tensors: one program a bag.

For a CUDA device where FBGEMM's build has no lookup. Rows are FBGEMM's: scale and bias as FP16,
then the values. On the CPU it runs only in Triton's interpreter.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from backends.kernels.sizes import power_of_two


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Tables of one width: ``block`` holds them, ``starts`` (features,) int64 where each begins.

    A row takes ``row_bytes``, of which ``dim`` are values; ``mean`` divides by the length of a bag.
    """

    block: torch.Tensor
    starts: torch.Tensor
    row_bytes: int
    dim: int
    mean: bool


def pool(rows: Rows, lengths: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return (rows, features x dim) of lengths (features x rows,) and ids, on this stream."""
    features = rows.starts.numel()
    count = lengths.numel() // features
    ends = torch.cumsum(lengths, 0, dtype=torch.int32)
    out = torch.empty((count, features * rows.dim), dtype=torch.float32, device=lengths.device)
    if count:
        # Pointers of each type: a byte's may not be read as another's within a kernel.
        _kernel[(lengths.numel(),)](
            rows.block,
            rows.block.view(torch.float16),
            rows.starts,
            ends,
            lengths,
            ids,
            out,
            count,
            features,
            rows.row_bytes,
            rows.dim,
            power_of_two(rows.dim),
            rows.mean,
        )
    return out


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def _kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917  # so Triton wants it
    block,
    halves,
    starts,
    ends,
    lengths,
    ids,
    out,
    rows,
    FEATURES: tl.constexpr,  # noqa: N803
    ROW_BYTES: tl.constexpr,  # noqa: N803
    DIM: tl.constexpr,  # noqa: N803
    BLOCK_DIM: tl.constexpr,  # noqa: N803
    MEAN: tl.constexpr,  # noqa: N803
):
    bag = tl.program_id(0)
    feature = bag // rows
    row = (bag % rows).to(tl.int64)
    start = tl.load(starts + feature)
    end = tl.load(ends + bag)
    length = tl.load(lengths + bag)
    column = tl.arange(0, BLOCK_DIM)
    known = column < DIM
    total = tl.zeros((BLOCK_DIM,), tl.float32)
    for place in range(end - length, end):
        at = start + tl.load(ids + place).to(tl.int64) * ROW_BYTES
        scale = tl.load(halves + at // 2).to(tl.float32)
        bias = tl.load(halves + at // 2 + 1).to(tl.float32)
        value = tl.load(block + at + 4 + column, mask=known, other=0)
        total += value.to(tl.float32) * scale + bias
    if MEAN:
        total = total / tl.maximum(length, 1).to(tl.float32)
    tl.store(out + row * (FEATURES * DIM) + feature * DIM + column, total, mask=known)
