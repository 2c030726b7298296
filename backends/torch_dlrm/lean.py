"""The lean plan: a DLRM's forward in as few operators as do the job, as a frozen graph.

One cumulative sum, one table-batched lookup, and for each block of rows: the dense layers, one
batched matrix product of all vectors with each other, one selection of the wanted products, the
layers over them. No KeyedJaggedTensor, no dict, no copy between devices.
"""

import io
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from backends.dlrm.gather import DENSE, DENSE_ROWS, IDS
from backends.torch_dlrm.layers import (
    PACKED_ROWS,
    ROWS_MULTIPLE,
    PackedLayers,
    as_tensor,
    prefers_onednn,
)
from backends.torch_dlrm.options import FP32
from backends.torch_dlrm.scores import Lookup, Scores
from backends.torch_dlrm.weights import Dlrm, held

# Rows that go through the dense part together: their vectors, products and activations (1.7 MB at
# the reference sizes) stay in the caches, and malloc hands out the same memory again and again.
BLOCK_ROWS = 128
_MOST_INT32 = 2**31
_NEVER = 2**62

Tensor = torch.Tensor
_jit: Any = torch.jit


class Lean:
    """Compute the scores of one batch, named ``output``; any number of threads at once.

    ``reorders`` is whether sums are added up in another order than the artifact's.
    """

    def __init__(self, dlrm: Dlrm, output: str, *, copy: bool, onednn: bool | None = None) -> None:
        """Take the weights of ``dlrm``: dense layers as copies, tables as copies or views.

        ``onednn`` is whether it multiplies what is large, by default where that is faster.
        """
        self.output = output
        self.tables = held(dlrm, copy=copy).tables
        self._block = as_tensor(self.tables.block)
        self._onednn = prefers_onednn() if onednn is None else onednn
        self.round_layers(dlrm, FP32)

    def round_layers(self, dlrm: Dlrm, precision: str) -> None:
        """Compute the dense layers in ``precision``, BF16; everything else stays FP32."""
        graph, packed = _freeze(dlrm, self._block, precision, onednn=self._onednn)
        self.reorders, self._packed = bool(packed), packed or [_no_weights()]
        # The methods: a module's call looks for hooks first, some us that a row would feel.
        self._few, self._many, self._distinct = graph.forward, graph.many, graph.distinct

    @property
    def warmed_rows(self) -> range:
        """Return the numbers of rows whose first forward makes code."""
        return range(PACKED_ROWS, BLOCK_ROWS + 1, ROWS_MULTIPLE) if self.reorders else range(0)

    def score(self, dense: Tensor, rows: Tensor | None, lengths: Tensor, ids: Tensor) -> Tensor:
        """Return the scores (rows,) of dense values (rows, n), lengths (features x rows), ids.

        With ``rows`` there may be fewer dense values: it says which are each row's.
        The ids have the dtype of the gather: int64 only where a table has more than 2**31 rows.
        """
        if rows is not None:
            found = self._distinct(dense, rows, lengths, ids, self._block, self._packed)
        elif dense.size(0) < PACKED_ROWS:
            found = self._few(dense, lengths, ids, self._block)
        else:
            found = self._many(dense, lengths, ids, self._block, self._packed)
        scores: Tensor = found
        return scores

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``score`` of named inputs; of rows, if DENSE_ROWS is one of them."""
        lengths, ids = inputs[f"{IDS}.lengths"], inputs[f"{IDS}.values"]
        return {self.output: self.score(inputs[DENSE], inputs.get(DENSE_ROWS), lengths, ids)}


class _AfterDense(torch.nn.Module):
    def __init__(self, scores: Scores) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        return self.scores.after_dense(dense, pooled)


class _Interact(torch.nn.Module):
    def __init__(self, scores: Scores) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        return self.scores.interact(dense, pooled)


class _Plain(NamedTuple):
    """Traced: the dense layers, and everything after them."""

    dense: Any
    after_dense: Any


class _Packed(NamedTuple):
    """Traced: the layers that take packed weights, and what is between them."""

    dense: Any
    interact: Any
    over: Any


class _Forward(torch.nn.Module):
    """The forward of few rows, and of any number with packed weights, which are arguments too."""

    def __init__(self, lookup: Any, plain: _Plain, packed: _Packed, packed_rows: int) -> None:
        super().__init__()
        self.lookup = lookup
        self.plain_dense, self.after_dense = plain
        self.packed_dense, self.interact, self.over = packed
        self.block_rows, self.packed_rows = BLOCK_ROWS, packed_rows
        self.multiple = ROWS_MULTIPLE

    def forward(self, dense: Tensor, lengths: Tensor, ids: Tensor, block: Tensor) -> Tensor:
        """Return the scores (rows,) of few rows."""
        pooled = self.lookup(lengths, ids, block)
        scores: Tensor = self.after_dense(self.plain_dense(dense), pooled)
        return scores

    def many(
        self, dense: Tensor, lengths: Tensor, ids: Tensor, block: Tensor, packed: list[Tensor]
    ) -> Tensor:
        """Return the scores (rows,), computed block by block."""
        pooled = self.lookup(lengths, ids, block)
        rows = dense.size(0)
        if rows <= self.block_rows:
            return self._scores(self._hidden(dense, packed), pooled, packed)
        blocks: list[Tensor] = []
        for start in range(0, rows, self.block_rows):
            end = start + self.block_rows
            hidden = self._hidden(dense[start:end], packed)
            blocks.append(self._scores(hidden, pooled[start:end], packed))
        return torch.cat(blocks)

    def distinct(
        self, dense: Tensor, rows: Tensor, lengths: Tensor, ids: Tensor, block: Tensor,
        packed: list[Tensor],
    ) -> Tensor:  # fmt: skip
        """Return the scores (rows,) where ``rows`` says which dense values are each row's."""
        pooled = self.lookup(lengths, ids, block)
        blocks: list[Tensor] = []
        for start in range(0, rows.size(0), self.block_rows):
            own = rows[start : start + self.block_rows]
            first, last = int(own[0]), int(own[-1])
            hidden = self._hidden(dense[first : last + 1], packed).index_select(0, own - first)
            of_block = pooled[start : start + self.block_rows]
            blocks.append(self._scores(hidden, of_block, packed))
        return torch.cat(blocks)

    def _hidden(self, dense: Tensor, packed: list[Tensor]) -> Tensor:
        rows = dense.size(0)
        if rows < self.packed_rows:
            few: Tensor = self.plain_dense(dense)
            return few
        many: Tensor = self.packed_dense(self._padded(dense), packed)
        return many[:rows]

    def _scores(self, hidden: Tensor, pooled: Tensor, packed: list[Tensor]) -> Tensor:
        rows = hidden.size(0)
        if rows < self.packed_rows:
            few: Tensor = self.after_dense(hidden, pooled)
            return few
        over: Tensor = self.over(self._padded(self.interact(hidden, pooled)), packed)
        return over[:rows].sigmoid_().view(-1)

    def _padded(self, values: Tensor) -> Tensor:
        """Return ``values`` with as many rows as oneDNN has made code for."""
        added = -values.size(0) % self.multiple
        if added == 0:
            return values
        return torch.constant_pad_nd(values, [0, 0, 0, added])


@torch.inference_mode()
def _freeze(dlrm: Dlrm, block: Tensor, precision: str, *, onednn: bool) -> tuple[Any, list[Tensor]]:
    """Return the forward as a graph, weights as constants, and the packed ones that it is given.

    What PyTorch traces and scripts stays in the process for ever, constants included. So the tables
    are an argument, and the graph is frozen in the compilation unit of a module of its own, which
    loading it makes and which goes with it. Packed weights are no constants that could be saved.
    """
    _jit.export(_Forward.distinct)  # marks it as one to be compiled, too
    _jit.export(_Forward.many)
    with warnings.catch_warnings(), io.BytesIO() as file:
        # TorchScript is deprecated as a whole; its graph runs without Python's lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        traced, packed = _traced(dlrm, block, precision, onednn=onednn)
        _jit.save(_jit.script(traced.eval()), file)
        file.seek(0)
        return _jit.freeze(_jit.load(file).eval(), preserved_attrs=["many", "distinct"]), packed


def _traced(
    dlrm: Dlrm, block: Tensor, precision: str, *, onednn: bool
) -> tuple[_Forward, list[Tensor]]:
    rows, features = 2, dlrm.tables.features
    wide = bool(dlrm.tables.rows.max() > _MOST_INT32)
    values = torch.zeros(rows, dlrm.dense_features)
    lengths = torch.ones(rows * features, dtype=torch.int32)
    ids = torch.zeros(rows * features, dtype=torch.int64 if wide else torch.int32)
    lookup, scores = Lookup(dlrm.tables), Scores(dlrm, precision)
    dense = PackedLayers(scores.dense, onednn=onednn)
    packed = dense.pack()
    over = PackedLayers(scores.over, onednn=onednn, before=len(packed))
    packed += over.pack()
    given = packed or [_no_weights()]
    pooled, hidden = lookup(lengths, ids, block), scores.dense(values)
    plain = _Plain(_trace(scores.dense, values), _trace(_AfterDense(scores), hidden, pooled))
    joined = scores.interact(hidden, pooled)
    many = _Packed(
        _trace(dense, values, given),
        _trace(_Interact(scores), hidden, pooled),
        _trace(over, joined, given),
    )
    packed_rows = PACKED_ROWS if packed else _NEVER
    return _Forward(_trace(lookup, lengths, ids, block), plain, many, packed_rows), packed


def _no_weights() -> Tensor:
    """Return what stands in a list for no packed weights: the tracer wants it to have elements."""
    return torch.empty(0)


def _trace(module: torch.nn.Module, *inputs: Tensor | list[Tensor]) -> Any:
    return _jit.trace(module, inputs, check_trace=False)
