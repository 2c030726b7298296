"""The fused plan: the lean plan's weights, a whole forward as one call of the C kernel.

Lookup, pooling, interaction and layers go through the caches row by row, with nothing of PyTorch in
between and without Python's lock. Tables stay where they are, so what is written there is seen.
"""

import ctypes
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from backends.compiled.build import NoKernelError
from backends.dlrm.forward import model
from backends.dlrm.forward.compiled import CompiledForward, CompiledWeights, Kernel
from backends.torch_dlrm.serving import RunGathered
from backends.torch_dlrm.weights import KINDS, Dlrm, Layer, Tables
from scheduler.types import Array

_POOLINGS = frozenset({0, 1})  # added up, averaged


class Fused:
    """Compute the scores of batches, named ``output``, on any number of lanes."""

    def __init__(self, dlrm: Dlrm, output: str, library: ctypes.CDLL) -> None:
        """Take copies of the dense layers and views of the tables.

        Raises NoKernelError for what the kernel does not compute.
        """
        self.tables, self._output = dlrm.tables, output
        self._weights = CompiledWeights(_known(dlrm, output), Kernel(library))

    @property
    def instructions(self) -> str:
        """Name of the instruction set."""
        return self._weights.kernel.instructions

    def make_lane(self) -> RunGathered:
        """Return a lane with memory of its own: inputs in, scores (rows,) in memory of theirs."""
        forward, output = CompiledForward(self._weights), self._output

        def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
            return {output: forward.run(inputs)}

        return run


def _known(dlrm: Dlrm, output: str) -> model.Dlrm:
    """Return ``dlrm`` in the kernel's nouns. Raises NoKernelError."""
    tables = dlrm.tables
    if tables.pooling not in _POOLINGS:
        raise NoKernelError(f"the C kernel has no pooling mode {tables.pooling}")
    return model.Dlrm(
        tables=tuple(_table(tables, feature) for feature in range(tables.features)),
        interacted=_interacted(dlrm.pairs, tables.features + 1),
        dense=tuple(_linear(layer, relu=True) for layer in dlrm.dense),
        over=(
            *(_linear(layer, relu=True) for layer in dlrm.over[:-1]),
            _linear(dlrm.over[-1], relu=False),
        ),
        sigmoid=True,
        output=output,
        storage=tables.block,
    )


def _table(tables: Tables, feature: int) -> model.Table:
    name = KINDS[int(tables.types[feature])]
    kind = next((known for known in model.KINDS if known == name), None)
    if kind is None:
        raise NoKernelError(f"the C kernel reads no rows of {name}")
    data = tables.row_block(feature).reshape(-1, tables.row_bytes(feature))
    return model.Table(f"f{feature}", kind, tables.dim, data, tables.averages)


def _interacted(pairs: npt.NDArray[np.int64], vectors: int) -> tuple[int, ...]:
    """Return the features in the order in which their vectors' products stand in ``pairs``.

    The kernel writes the triangle of all vectors, the dense one (0) first. Raises NoKernelError.
    """
    # The first ones are those of the dense vector: of each, the other vector is the sum.
    order = [0, *pairs[:, : vectors - 1].sum(axis=0).tolist()]
    if sorted(order) == list(range(vectors)):
        triangle = np.asarray(order)[np.stack(np.triu_indices(vectors, 1))]
        if np.array_equal(np.sort(triangle, axis=0), np.sort(pairs, axis=0)):
            return tuple(vector - 1 for vector in order[1:])
    raise NoKernelError("the C kernel writes every product once, the dense vector's first")


def _linear(layer: Layer, *, relu: bool) -> model.Linear:
    return model.Linear(layer.weight, layer.bias, relu)
