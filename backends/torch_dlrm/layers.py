"""The dense layers of the lean plan: in FP32, in BF16, and in FP32 by oneDNN where that is faster.

Each module is traced: what it does is fixed by its layers.
"""

import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.torch_dlrm.weights import Layer

# oneDNN makes code for each number of rows and keeps it, 0.5 MB a layer. So it is for many rows
# only, in numbers that are few enough to be made at load; and for layers of many weights.
PACKED_ROWS, ROWS_MULTIPLE = 64, 4
_PACKED_WEIGHTS = 1 << 17
# oneDNN lays weights out for about so many rows.
_EXPECTED_ROWS = 128
_CPU_FACTS = Path("/proc/cpuinfo")

Tensor = torch.Tensor
_jit: Any = torch.jit
_mkldnn: Any = torch.backends.mkldnn
_addmm_relu: Any = torch.ops.aten._addmm_activation  # noqa: SLF001 - one operator instead of three


class Layers(torch.nn.Module):
    """Layers in FP32, one operator each: a ReLU after every one, or after all but the last."""

    def __init__(self, layers: Sequence[Layer], *, last_is_linear: bool) -> None:
        super().__init__()
        self._relus = len(layers) - last_is_linear
        for number, layer in enumerate(layers):
            # Laid out by input, a third faster at 10 rows: the product reads the weight as it lies.
            self.register_buffer(f"weight_{number}", as_tensor(layer.weight.T, copy=True))
            self.register_buffer(f"bias_{number}", as_tensor(layer.bias, copy=True))
        self.count = len(layers)

    def forward(self, values: Tensor) -> Tensor:
        """Return what the layers make of ``values`` (rows, n)."""
        for number in range(self.count):
            values = self.apply_one(number, values)
        return values

    def apply_one(self, number: int, values: Tensor) -> Tensor:
        """Return what layer ``number`` makes of ``values``."""
        weight, bias = getattr(self, f"weight_{number}"), getattr(self, f"bias_{number}")
        # Neither is addmm, which a frozen graph takes apart into a product and a sum.
        if number < self._relus:
            made: Tensor = _addmm_relu(bias, values, weight)
            return made
        return torch.nn.functional.linear(values, weight.t(), bias)

    def large(self) -> tuple[int, ...]:
        """Return which layers are worth oneDNN's while."""
        weights = (getattr(self, f"weight_{number}") for number in range(self._relus))
        return tuple(n for n, one in enumerate(weights) if one.numel() >= _PACKED_WEIGHTS)


class HalfLayers(torch.nn.Module):
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


class PackedLayers(torch.nn.Module):
    """``layers``, the large ones by oneDNN if ``onednn``, from weights that come with each call."""

    def __init__(self, layers: Layers | HalfLayers, *, onednn: bool, before: int = 0) -> None:
        """Take the weights that are to come after ``before`` others."""
        super().__init__()
        self.layers = layers
        self._large = layers.large() if onednn and isinstance(layers, Layers) else ()
        self._before = before

    def forward(self, values: Tensor, packed: list[Tensor]) -> Tensor:
        """Return what the layers make of ``values`` (rows, n); ``packed`` are those of ``pack``."""
        layers: Any = self.layers
        if not self._large:
            made: Tensor = layers(values)
            return made
        place = self._before
        for number in range(layers.count):
            if number in self._large:
                bias = getattr(layers, f"bias_{number}")
                values = _onednn_relu()(values, packed[place], bias)
                place += 1
            else:
                values = layers.apply_one(number, values)
        return values

    def pack(self) -> list[Tensor]:
        """Return the weights of the large layers as oneDNN wants them, in order."""
        # What torch.compile packs the weights of a layer by; not every build of PyTorch has it.
        pack: Any = torch.ops.mkldnn._reorder_linear_weight if self._large else None  # noqa: SLF001
        weights = (getattr(self.layers, f"weight_{number}") for number in self._large)
        return [pack(weight.t().contiguous(), _EXPECTED_ROWS) for weight in weights]


def prefers_onednn() -> bool:
    """Return whether oneDNN multiplies FP32 faster here than MKL: on AMD's CPUs with AVX-512.

    On a Xeon it took 1.15 of MKL's time, on an EPYC (Zen 4) 0.9 (decision 0064).
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not _mkldnn.is_available():
        return False
    try:
        return "AuthenticAMD" in _CPU_FACTS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def _linear_relu(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    # What torch.compile makes of a layer. It could have the ReLU too, which makes 0 of NaN.
    result: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")  # noqa: SLF001
    return result.relu_()


@cache
def _onednn_relu() -> Any:
    # Scripted, because what is traced may not have the operator's empty list of scalars.
    return _jit.script(_linear_relu)


def as_tensor(array: Any, *, copy: bool = False) -> Tensor:
    """Return ``array`` as a tensor: a view, of read-only memory too, or a copy."""
    if copy:
        return torch.from_numpy(np.array(array, order="C"))
    with warnings.catch_warnings():
        # The array is read-only, and nothing here writes.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
