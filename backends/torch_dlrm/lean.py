"""The lean plan: a DLRM's forward in as few operators as do the job, as a frozen graph.

One cumulative sum, one table-batched lookup, and for each block of rows: the dense layers, one
batched matrix product of all vectors with each other, one selection of the wanted products, the
layers over them. No KeyedJaggedTensor, no dict, no copy between devices.
"""

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

# Registers the fbgemm:: operators.
import fbgemm_gpu  # noqa: F401
import numpy as np
import torch

from backends.dlrm.gather import DENSE, DENSE_ROWS, IDS
from backends.torch_dlrm.options import BF16, FP32
from backends.torch_dlrm.weights import Dlrm, Layer, Tables, held

# Rows that go through the dense part together: their vectors, products and activations (1.7 MB at
# the reference sizes) stay in the caches, and malloc hands out the same memory again and again.
BLOCK_ROWS = 128
# MKL multiplies 28 vectors with each other in 3/4 of the time that it takes for 27.
_VECTORS_MULTIPLE = 4
_HOST = 3
_MOST_INT32 = 2**31

Tensor = torch.Tensor
_fbgemm: Any = torch.ops.fbgemm
_jit: Any = torch.jit
_addmm_relu: Any = torch.ops.aten._addmm_activation  # noqa: SLF001 - one operator instead of three


class Lean:
    """Compute the scores of one batch, named ``output``; any number of threads at once.

    ``block`` are the bytes of its tables, which ``forward`` and ``distinct`` take with a batch.
    """

    def __init__(self, dlrm: Dlrm, output: str, *, copy: bool) -> None:
        """Take the weights of ``dlrm``: dense layers as copies, tables as copies or views."""
        self.output = output
        self.tables = held(dlrm, copy=copy).tables
        self.block = as_tensor(self.tables.block)
        self.round_layers(dlrm, FP32)

    def round_layers(self, dlrm: Dlrm, precision: str) -> None:
        """Compute the dense layers in ``precision``, BF16; everything else stays FP32."""
        graph = _freeze(dlrm, self.block, precision)
        # The methods: a module's call looks for hooks first, some us that a row would feel.
        self.forward, self.distinct = graph.forward, graph.distinct

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the scores (rows,) of dense values (rows, n), lengths (features x rows), ids.

        With DENSE_ROWS (rows,) there may be fewer dense values: it says which are each row's.
        The ids have the dtype of the gather: int64 only where a table has more than 2**31 rows.
        """
        lengths, ids = inputs[f"{IDS}.lengths"], inputs[f"{IDS}.values"]
        rows = inputs.get(DENSE_ROWS)
        if rows is None:
            return {self.output: self.forward(inputs[DENSE], lengths, ids, self.block)}
        dense = inputs[DENSE]
        return {self.output: self.distinct(dense, rows, lengths, ids, self.block)}


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


class _Layers(torch.nn.Module):
    def __init__(self, layers: Sequence[Layer], *, last_is_linear: bool) -> None:
        super().__init__()
        self._relus = len(layers) - last_is_linear
        for number, layer in enumerate(layers):
            # Laid out by input, a third faster at 10 rows: the product reads the weight as it lies.
            self.register_buffer(f"weight_{number}", as_tensor(layer.weight.T, copy=True))
            self.register_buffer(f"bias_{number}", as_tensor(layer.bias, copy=True))
        self._count = len(layers)

    def forward(self, values: Tensor) -> Tensor:
        """Return what the layers make of ``values`` (rows, n)."""
        for number in range(self._count):
            weight, bias = getattr(self, f"weight_{number}"), getattr(self, f"bias_{number}")
            # Neither is addmm, which a frozen graph takes apart into a product and a sum.
            if number < self._relus:
                values = _addmm_relu(bias, values, weight)
            else:
                values = torch.nn.functional.linear(values, weight.t(), bias)
        return values


class _HalfLayers(torch.nn.Module):
    """The same with weights and activations in BF16; sums are FP32 inside each product."""

    def __init__(self, layers: Sequence[Layer], *, last_is_linear: bool) -> None:
        super().__init__()
        self._relus = len(layers) - last_is_linear
        for number, layer in enumerate(layers):
            self.register_buffer(f"weight_{number}", as_tensor(layer.weight, copy=True).bfloat16())
            self.register_buffer(f"bias_{number}", as_tensor(layer.bias, copy=True).bfloat16())
        self._count = len(layers)

    def forward(self, values: Tensor) -> Tensor:
        """Return what the layers make of ``values`` (rows, n), as FP32."""
        values = values.bfloat16()
        for number in range(self._count):
            weight, bias = getattr(self, f"weight_{number}"), getattr(self, f"bias_{number}")
            values = torch.nn.functional.linear(values, weight, bias)
            values = values.relu_() if number < self._relus else values
        return values.float()


def vectors_of(tables: Tables) -> int:
    """Return how many vectors of a row are multiplied with each other: some are there twice."""
    return -(-(tables.features + 1) // _VECTORS_MULTIPLE) * _VECTORS_MULTIPLE


class Scores(torch.nn.Module):
    """Everything after the lookup."""

    def __init__(self, dlrm: Dlrm, dense: str = FP32) -> None:
        super().__init__()
        layers = _HalfLayers if dense == BF16 else _Layers
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


class _AfterDense(torch.nn.Module):
    def __init__(self, scores: Scores) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        return self.scores.after_dense(dense, pooled)


class _Forward(torch.nn.Module):
    def __init__(
        self, lookup: torch.nn.Module, dense: torch.nn.Module, after_dense: torch.nn.Module
    ) -> None:
        super().__init__()
        self.lookup, self.dense, self.after_dense = lookup, dense, after_dense
        self.block_rows = BLOCK_ROWS

    def forward(self, dense: Tensor, lengths: Tensor, ids: Tensor, block: Tensor) -> Tensor:
        """Return the scores (rows,), computed block by block."""
        pooled = self.lookup(lengths, ids, block)
        rows = dense.size(0)
        if rows <= self.block_rows:
            scores: Tensor = self.after_dense(self.dense(dense), pooled)
            return scores
        blocks: list[Tensor] = []
        for start in range(0, rows, self.block_rows):
            end = start + self.block_rows
            blocks.append(self.after_dense(self.dense(dense[start:end]), pooled[start:end]))
        return torch.cat(blocks)

    def distinct(
        self, dense: Tensor, rows: Tensor, lengths: Tensor, ids: Tensor, block: Tensor
    ) -> Tensor:
        """Return the scores (rows,) where ``rows`` says which dense values are each row's."""
        pooled = self.lookup(lengths, ids, block)
        blocks: list[Tensor] = []
        for start in range(0, rows.size(0), self.block_rows):
            own = rows[start : start + self.block_rows]
            first, last = int(own[0]), int(own[-1])
            hidden = self.dense(dense[first : last + 1]).index_select(0, own - first)
            blocks.append(self.after_dense(hidden, pooled[start : start + self.block_rows]))
        return torch.cat(blocks)


@torch.inference_mode()
def _freeze(dlrm: Dlrm, block: Tensor, precision: str) -> Any:
    """Return the forward as a graph of (dense, lengths, ids, block), weights as constants.

    What PyTorch traces and scripts stays in the process for ever, constants included. So the tables
    are an argument, and the graph is frozen in the compilation unit of a module of its own, which
    loading it makes and which goes with it.
    """
    rows, features = 2, dlrm.tables.features
    wide = bool(dlrm.tables.rows.max() > _MOST_INT32)
    dense = torch.zeros(rows, dlrm.dense_features)
    lengths = torch.ones(rows * features, dtype=torch.int32)
    ids = torch.zeros(rows * features, dtype=torch.int64 if wide else torch.int32)
    _jit.export(_Forward.distinct)  # marks it as one to be compiled, too
    with warnings.catch_warnings(), io.BytesIO() as file:
        # TorchScript is deprecated as a whole; its graph runs without Python's lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        lookup, scores = Lookup(dlrm.tables), Scores(dlrm, precision)
        pooled, hidden = lookup(lengths, ids, block), scores.dense(dense)
        traced = _Forward(
            _jit.trace(lookup, (lengths, ids, block), check_trace=False),
            _jit.trace(scores.dense, (dense,), check_trace=False),
            _jit.trace(_AfterDense(scores), (hidden, pooled), check_trace=False),
        )
        _jit.save(_jit.script(traced.eval()), file)
        file.seek(0)
        return _jit.freeze(_jit.load(file).eval(), preserved_attrs=["distinct"])


def as_tensor(array: Any, *, copy: bool = False) -> Tensor:
    """Return ``array`` as a tensor: a view, of read-only memory too, or a copy."""
    if copy:
        return torch.from_numpy(np.array(array, order="C"))
    with warnings.catch_warnings():
        # The array is read-only, and nothing here writes.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
