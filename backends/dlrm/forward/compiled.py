"""One forward of a DLRM by the C kernel: weights packed once, one call a batch without the GIL."""

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, addressof, byref, c_int64, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.compiled.build import NoKernelError
from backends.dlrm.forward.layout import table_layout
from backends.dlrm.forward.model import Dlrm, Floats, Linear
from backends.dlrm.forward.panels import aligned, in_panels, kept, padded_bias, rounded
from backends.dlrm.forward.triples import as_triples, side_by_side
from backends.dlrm.gather import DENSE, FEW_IDS, FEW_ROWS, IDS, PATTERN_OF_ROW, PATTERNS
from scheduler.types import Array

# A block's activations stay in the second-level cache while the weights pass by.
_BLOCK_ROWS = 112
_LINE_FLOATS = 16
_LARGEST_HALF = float(np.finfo(np.float16).max)
_LENGTHS, _VALUES = f"{IDS}.lengths", f"{IDS}.values"


class _Layer(Structure):
    _fields_ = (
        ("weight", c_void_p), ("bias", c_void_p), ("triples", c_void_p), ("scale", c_void_p),
        ("inputs", c_int64), ("outputs", c_int64),
        ("relu", c_int64), ("half", c_int64),
    )  # fmt: skip


class _Model(Structure):
    _fields_ = (
        ("storage", c_void_p), ("tables", c_void_p), ("dense", POINTER(_Layer)),
        ("over", POINTER(_Layer)), ("features", c_int64), ("dim", c_int64),
        ("dense_layers", c_int64), ("over_layers", c_int64), ("sigmoid", c_int64),
    )  # fmt: skip


class _Scratch(Structure):
    _fields_ = (
        ("left", c_void_p), ("right", c_void_p), ("vectors", c_void_p), ("cursors", c_void_p),
        ("repeated", c_void_p), ("used", c_void_p), ("block_rows", c_int64), ("stride", c_int64),
        ("vector_stride", c_int64),
    )  # fmt: skip


class _Batch(Structure):
    _fields_ = (
        ("dense", c_void_p), ("lengths", c_void_p), ("ids", c_void_p),
        ("pattern_of_row", c_void_p), ("patterns", c_void_p), ("rows", c_int64),
        ("wide_ids", c_int64),
    )  # fmt: skip


class Kernel:
    """The library's functions, for one instruction set: ``level`` 1 is AVX2, 2 is AVX-512."""

    def __init__(self, library: ctypes.CDLL, level: int = 0) -> None:
        """Take ``level``, or the best one of this CPU. Raises NoKernelError if it has none."""
        best = int(library.narsil_best_level())
        if not best or level > best:
            raise NoKernelError("this CPU lacks AVX2, FMA or F16C")
        self.level = level or best
        self.columns = int(library.narsil_panel_columns(self.level))
        self.forward = library.narsil_forward
        self.forward.argtypes = (ctypes.c_int, *[c_void_p] * 4)
        self.forward.restype = None
        self.used_size = library.narsil_used_size
        self.used_size.argtypes = (ctypes.c_int, c_void_p, c_int64)
        self.used_size.restype = c_int64

    @property
    def instructions(self) -> str:
        """Name of the instruction set."""
        return "avx512" if self.level == 2 else "avx2"


class CompiledWeights:
    """What every lane reads: the weights as the kernel wants them, and where the tables lie."""

    def __init__(self, dlrm: Dlrm, kernel: Kernel, *, half: bool = False) -> None:
        """Copy the dense weights, as FP16 if ``half``; the tables stay where they are.

        Raises NoKernelError for weights that FP16 has no numbers for.
        """
        self.dlrm, self.kernel = dlrm, kernel
        if half and not _fit_in_half(dlrm):
            raise NoKernelError(f"a dense weight is over {_LARGEST_HALF}, the most in FP16")
        widths = [len(layer.bias) for layer in (*dlrm.dense, *dlrm.over)]
        # Dense values too: of rows that share some, a lane has a copy.
        widest = max(*widths, dlrm.interaction_width, dlrm.dense_features)
        self.stride = rounded(widest, kernel.columns)
        last = dlrm.over[-1]
        self._kept: list[Array] = []
        panels = [in_panels(layer, kernel.columns) for layer in (*dlrm.dense, *dlrm.over[:-1])]
        layers = [
            self._layer(layer, panel.astype(np.float16) if half else panel)
            for layer, panel in zip((*dlrm.dense, *dlrm.over[:-1]), panels, strict=True)
        ]
        if not half:
            self._add_triples(layers, panels)
        dense, over = layers[: len(dlrm.dense)], layers[len(dlrm.dense) :]
        over.append(self._layer(last, last.weight))
        layout = self._keep(table_layout(dlrm))
        self.model = _Model(
            dlrm.storage.ctypes.data, layout, _array(dense), _array(over), len(dlrm.tables),
            dlrm.dim, len(dense), len(over), dlrm.sigmoid,
        )  # fmt: skip

    def used_size(self, block_rows: int) -> int:
        """Return how many numbers of 32 bits a lane needs for its lists of inputs."""
        return int(self.kernel.used_size(self.kernel.level, byref(self.model), block_rows))

    def _add_triples(self, layers: Sequence[_Layer], panels: Sequence[Floats]) -> None:
        """Add to ``layers`` their weights in three bytes each, where those are as good."""
        for layer, panel in zip(layers, panels, strict=True):
            made = as_triples(panel)
            if made:
                layer.triples = self._keep(side_by_side(made, panel.shape))
                layer.scale = self._keep(made.scale)

    def _layer(self, layer: Linear, weight: npt.NDArray[np.floating[Any]]) -> _Layer:
        outputs, inputs = layer.weight.shape
        bias = padded_bias(layer, self.kernel.columns)
        half = weight.dtype == np.float16
        addresses = self._keep(weight), self._keep(bias), None, None
        return _Layer(*addresses, inputs, outputs, layer.relu, half)

    def _keep(self, values: npt.NDArray[Any]) -> int:
        """Copy ``values`` to where a cache line begins; return the address."""
        self._kept.append(kept(values))
        return int(self._kept[-1].ctypes.data)


class CompiledForward:
    """One lane: scores one batch at a time, on the calling thread."""

    def __init__(self, weights: CompiledWeights) -> None:
        self._weights = weights
        dlrm = weights.dlrm
        vector_stride = rounded(dlrm.dim, _LINE_FLOATS)
        block = (_BLOCK_ROWS, weights.stride)
        self._kept = (
            aligned(block, np.float32), aligned(block, np.float32),
            aligned((len(dlrm.tables) + 1, vector_stride), np.float32),
            aligned((2 * len(dlrm.tables),), np.int64),
            aligned((len(dlrm.tables) + 1,), np.int64),
            aligned((weights.used_size(_BLOCK_ROWS),), np.int32),
        )  # fmt: skip
        addresses = [memory.ctypes.data for memory in self._kept]
        self._scratch = _Scratch(*addresses, _BLOCK_ROWS, weights.stride, vector_stride)
        self._few = _FewRows(weights, self._scratch)

    def run(self, inputs: Mapping[str, Array]) -> Floats:
        """Return the scores of a gathered batch, (rows,), in memory of their own.

        A batch of fewer than FEW_ROWS with FEW_IDS at most may be of any width, anywhere in memory.
        """
        dense, lengths, ids = inputs[DENSE], inputs[_LENGTHS], inputs[_VALUES]
        if len(dense) < FEW_ROWS and ids.size <= FEW_IDS:
            return self._few.run(dense, lengths, ids)
        return self._run_large(inputs)

    def _run_large(self, inputs: Mapping[str, Array]) -> Floats:
        dense = np.ascontiguousarray(inputs[DENSE], np.float32)
        lengths = np.ascontiguousarray(inputs[_LENGTHS], np.int32)
        ids = np.ascontiguousarray(inputs[_VALUES])
        rows = len(dense)
        scores = np.empty(rows, np.float32)
        batch = _Batch(
            dense.ctypes.data, lengths.ctypes.data, ids.ctypes.data,
            _address(inputs.get(PATTERN_OF_ROW)), _address(inputs.get(PATTERNS)), rows,
            ids.itemsize == 8,
        )  # fmt: skip
        weights = self._weights
        weights.kernel.forward(
            weights.kernel.level, byref(weights.model), byref(self._scratch), byref(batch),
            scores.ctypes.data,
        )  # fmt: skip
        return scores


class _FewRows:
    """A lane's own copy of a small batch, where the kernel was told once that it lies.

    To ask NumPy for four addresses and tell the kernel takes longer than to copy so little, and
    three times as long when a forward has just filled the caches with weights.
    """

    def __init__(self, weights: CompiledWeights, scratch: _Scratch) -> None:
        dlrm, kernel = weights.dlrm, weights.kernel
        self._dense = np.zeros((FEW_ROWS, dlrm.dense_features), np.float32)
        self._lengths = np.zeros(FEW_ROWS * len(dlrm.tables), np.int32)
        self._ids = np.zeros(FEW_IDS, np.int64)
        self._scores = np.zeros(FEW_ROWS, np.float32)
        copies = (self._dense, self._lengths, self._ids)
        self._batch = _Batch(*(each.ctypes.data for each in copies), None, None, 0, True)
        self._forward = kernel.forward
        self._arguments = (
            kernel.level, addressof(weights.model), addressof(scratch), addressof(self._batch),
            self._scores.ctypes.data,
        )  # fmt: skip

    def run(self, dense: Array, lengths: Array, ids: Array) -> Floats:
        """Return the scores of a batch, (rows,), in memory of their own."""
        self._batch.rows = rows = len(dense)
        self._dense[:rows] = dense
        self._lengths[: len(lengths)] = lengths
        self._ids[: len(ids)] = ids
        self._forward(*self._arguments)
        return self._scores[:rows].copy()


def _fit_in_half(dlrm: Dlrm) -> bool:
    layers = (*dlrm.dense, *dlrm.over)
    return all(float(np.abs(layer.weight).max()) <= _LARGEST_HALF for layer in layers)


def _address(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


def _array(layers: Sequence[_Layer]) -> "ctypes.Array[_Layer]":
    return (_Layer * len(layers))(*layers)
