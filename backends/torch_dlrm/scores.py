"""The pieces of the lean plan, to be traced: the lookup, and everything after it."""

from typing import Any

# Registers the fbgemm:: operators.
import fbgemm_gpu  # noqa: F401
import torch

from backends.torch_dlrm.layers import HalfLayers, Layers, as_tensor
from backends.torch_dlrm.options import BF16, FP32
from backends.torch_dlrm.weights import Dlrm, Tables

# MKL multiplies 28 vectors with each other in 3/4 of the time that it takes for 27.
_VECTORS_MULTIPLE = 4
_HOST = 3

Tensor = torch.Tensor
_fbgemm: Any = torch.ops.fbgemm


class Lookup(torch.nn.Module):
    """The pooled rows of all tables, whose bytes are an argument."""

    def __init__(self, tables: Tables) -> None:
        super().__init__()
        ends = torch.arange(tables.features + 1, dtype=torch.int32) * tables.dim
        self.register_buffer("unused", torch.empty(0, dtype=torch.uint8))
        self.register_buffer("places", torch.full((tables.features,), _HOST, dtype=torch.int32))
        self.register_buffer("starts", as_tensor(tables.starts, copy=True))
        self.register_buffer("types", as_tensor(tables.types, copy=True))
        self.register_buffer("ends", ends)
        self._width = tables.features * tables.dim
        self._largest = tables.largest
        self._pooling, self._row_alignment = tables.pooling, tables.row_alignment

    def forward(self, lengths: Tensor, ids: Tensor, block: Tensor) -> Tensor:
        """Return the pooled rows (rows, features x dim)."""
        # The operator wants offsets and ids of one dtype; for int32 ids this is nothing.
        offsets = _fbgemm.asynchronous_complete_cumsum(lengths).to(ids.dtype)
        pooled: Tensor = _fbgemm.int_nbit_split_embedding_codegen_lookup_function(
            block, self.unused, self.places, self.starts, self.types, self.ends,
            self._width, *self._largest, ids, offsets, self._pooling, None, 0, None, None,
            self._row_alignment, 0, -1, -1,
        )  # fmt: skip
        return pooled


def vectors_of(tables: Tables) -> int:
    """Return how many vectors of a row are multiplied with each other: some are there twice."""
    return -(-(tables.features + 1) // _VECTORS_MULTIPLE) * _VECTORS_MULTIPLE


class Scores(torch.nn.Module):
    """Everything after the lookup."""

    def __init__(self, dlrm: Dlrm, dense: str = FP32) -> None:
        super().__init__()
        layers = HalfLayers if dense == BF16 else Layers
        self.dense = layers(dlrm.dense, last_is_linear=False)
        self.over = layers(dlrm.over, last_is_linear=True)
        self._dim, self._vectors = dlrm.tables.dim, vectors_of(dlrm.tables)
        self._added = self._vectors - (dlrm.tables.features + 1)
        pairs = dlrm.pairs[0] * self._vectors + dlrm.pairs[1]
        self.pairs: Tensor
        self.register_buffer("pairs", as_tensor(pairs, copy=True))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return the scores (rows,)."""
        return self.after_dense(self.dense(dense), pooled)

    def after_dense(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return the scores (rows,) of what the dense layers made."""
        over: Tensor = self.over(self.interact(dense, pooled))
        return over.sigmoid_().view(-1)

    def interact(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return the dense vectors (rows, dim) and the products of all pairs beside them."""
        # What is added is any vector: none of its products is selected.
        parts = (dense, pooled, *(dense,) * self._added)
        vectors = torch.cat(parts, 1).view(-1, self._vectors, self._dim)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).view(-1, self._vectors**2)
        return torch.cat((dense, products.index_select(1, self.pairs)), 1)
