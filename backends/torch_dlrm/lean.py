"""The lean plan: a DLRM's forward in as few operators as do the job, as a frozen graph.

One cumulative sum, one table-batched lookup, and for each block of rows: the dense layers, one
batched matrix product of all vectors with each other, one selection of the wanted products, the
layers over them. No KeyedJaggedTensor, no dict, no copy between devices.
"""

import warnings
from collections.abc import Mapping
from typing import Any

# Registers the fbgemm:: operators.
import fbgemm_gpu  # noqa: F401
import numpy as np
import torch

from backends.dlrm.gather import DENSE, IDS
from backends.torch_dlrm.weights import Dlrm, Layer, Tables

# Rows that go through the dense part together: their vectors, products and activations (1.7 MB at
# the reference sizes) stay in the caches, and malloc hands out the same memory again and again.
BLOCK_ROWS = 128
_HOST = 3

Tensor = torch.Tensor
_fbgemm: Any = torch.ops.fbgemm
_jit: Any = torch.jit


class Lean:
    """Compute the scores of one batch, named ``output``; any number of threads at once."""

    def __init__(self, dlrm: Dlrm, output: str, *, copy: bool) -> None:
        """Take the weights of ``dlrm``: dense layers as copies, tables as copies or views."""
        self._output = output
        wide = bool(dlrm.tables.rows.max() > 2**31)
        self._graph = _freeze(dlrm, wide, copy=copy)

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the scores (rows,) of dense values (rows, n), lengths (features x rows), ids.

        The ids have the dtype of the gather: int64 only where a table has more than 2**31 rows.
        """
        lengths, ids = inputs[f"{IDS}.lengths"], inputs[f"{IDS}.values"]
        return {self._output: self._graph(inputs[DENSE], lengths, ids)}


class _Lookup(torch.nn.Module):
    def __init__(self, tables: Tables, *, copy: bool) -> None:
        super().__init__()
        self._block = _tensor(tables.block, copy=copy)
        self._unused = torch.empty(0, dtype=torch.uint8)
        self._places = torch.full((tables.features,), _HOST, dtype=torch.int32)
        self._starts, self._types = _tensor(tables.starts), _tensor(tables.types)
        self._ends = torch.arange(tables.features + 1, dtype=torch.int32) * tables.dim
        self._width = tables.features * tables.dim
        self._largest = tables.largest
        self._pooling, self._row_alignment = tables.pooling, tables.row_alignment

    def forward(self, lengths: Tensor, ids: Tensor) -> Tensor:
        """Return the pooled rows (rows, features x dim)."""
        # The operator wants offsets and ids of one dtype; for int32 ids this is nothing.
        offsets = _fbgemm.asynchronous_complete_cumsum(lengths).to(ids.dtype)
        pooled: Tensor = _fbgemm.int_nbit_split_embedding_codegen_lookup_function(
            self._block, self._unused, self._places, self._starts, self._types, self._ends,
            self._width, *self._largest, ids, offsets, self._pooling, None, 0, None, None,
            self._row_alignment, 0, -1, -1,
        )  # fmt: skip
        return pooled


class _Scores(torch.nn.Module):
    def __init__(self, dlrm: Dlrm) -> None:
        super().__init__()
        self._dense = [_parameters(layer) for layer in dlrm.dense]
        self._over = [_parameters(layer) for layer in dlrm.over]
        self._dim, self._vectors = dlrm.tables.dim, dlrm.tables.features + 1
        self._pairs = _tensor(dlrm.pairs[0] * self._vectors + dlrm.pairs[1])

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return the scores (rows,)."""
        for weight, bias in self._dense:
            dense = torch.addmm(bias, dense, weight).relu_()
        vectors = torch.cat((dense, pooled), 1).view(-1, self._vectors, self._dim)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).view(-1, self._vectors**2)
        over = torch.cat((dense, products.index_select(1, self._pairs)), 1)
        for weight, bias in self._over[:-1]:
            over = torch.addmm(bias, over, weight).relu_()
        weight, bias = self._over[-1]
        return torch.addmm(bias, over, weight).sigmoid_().view(-1)


class _Forward(torch.nn.Module):
    def __init__(self, lookup: torch.nn.Module, scores: torch.nn.Module) -> None:
        super().__init__()
        self.lookup, self.scores = lookup, scores
        self.block_rows = BLOCK_ROWS

    def forward(self, dense: Tensor, lengths: Tensor, ids: Tensor) -> Tensor:
        """Return the scores (rows,), computed block by block."""
        pooled = self.lookup(lengths, ids)
        rows = dense.size(0)
        if rows <= self.block_rows:
            scores: Tensor = self.scores(dense, pooled)
            return scores
        blocks: list[Tensor] = []
        for start in range(0, rows, self.block_rows):
            end = start + self.block_rows
            blocks.append(self.scores(dense[start:end], pooled[start:end]))
        return torch.cat(blocks)


@torch.inference_mode()
def _freeze(dlrm: Dlrm, wide: bool, *, copy: bool) -> Any:
    rows, features = 2, dlrm.tables.features
    dense = torch.zeros(rows, dlrm.dense_features)
    lengths = torch.ones(rows * features, dtype=torch.int32)
    ids = torch.zeros(rows * features, dtype=torch.int64 if wide else torch.int32)
    with warnings.catch_warnings():
        # TorchScript is deprecated as a whole; its graph runs without Python's lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        lookup, scores = _Lookup(dlrm.tables, copy=copy), _Scores(dlrm)
        pooled = lookup(lengths, ids)
        traced = _Forward(
            _jit.trace(lookup, (lengths, ids), check_trace=False),
            _jit.trace(scores, (dense, pooled), check_trace=False),
        )
        return _jit.freeze(_jit.script(traced.eval()))


def _parameters(layer: Layer) -> tuple[Tensor, Tensor]:
    """Return weight and bias with the weight's rows laid out by input: a third faster at 10 rows.

    The product then reads it as it lies; with rows by output every call would transpose it.
    """
    return _tensor(layer.weight.T, copy=True), _tensor(layer.bias, copy=True)


def _tensor(array: Any, *, copy: bool = False) -> Tensor:
    if copy:
        return torch.from_numpy(np.array(array, order="C"))
    with warnings.catch_warnings():
        # The array is read-only, and nothing here writes.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
