"""The layers of a model as ``layers.apply`` reads them: weights in panels, where each lies."""

from collections.abc import Sequence

import numpy as np

from backends.dlrm.forward.model import Linear
from backends.dlrm.forward.panels import in_panels, kept, padded_bias
from backends.dlrm.forward.triples import as_triples
from backends.native_dlrm.layers import FIELDS
from backends.native_dlrm.tile import COLUMNS
from scheduler.types import Array


class PackedLayers:
    """``table`` has a row of WEIGHT, ... for each layer: addresses of what is kept here."""

    def __init__(self, layers: Sequence[Linear]) -> None:
        """Copy the weights of ``layers``, twice where they fit three bytes each."""
        self._kept: list[Array] = []
        self.table = np.asarray([self._row(layer) for layer in layers], np.int64)
        self.table = self.table.reshape(-1, FIELDS)

    def _row(self, layer: Linear) -> tuple[int, ...]:
        panels = in_panels(layer, COLUMNS)
        made = as_triples(panels)
        numbers, scale = (self._keep(made.numbers), self._keep(made.scale)) if made else (0, 0)
        bias = self._keep(padded_bias(layer, COLUMNS))
        outputs, inputs = layer.weight.shape
        return self._keep(panels), numbers, scale, bias, inputs, outputs, layer.relu

    def _keep(self, values: Array) -> int:
        self._kept.append(kept(values))
        return int(self._kept[-1].ctypes.data)
