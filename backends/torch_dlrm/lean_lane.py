"""A lane of a lean plan on the CPU, with as little as can be between arrays and the graph.

At one row what Python does is a tenth of a forward: no dict of tensors, no mode made anew.
"""

from collections.abc import Mapping

import torch

from backends.dlrm.gather import DENSE, DENSE_ROWS, IDS
from backends.torch_dlrm.lean import Lean
from scheduler.types import Array

_LENGTHS, _VALUES = f"{IDS}.lengths", f"{IDS}.values"


class LeanLane:
    """Run ``lean`` with ``threads`` threads a forward, without a copy in or out; one at a time."""

    def __init__(self, lean: Lean, threads: int) -> None:
        self._forward, self._distinct = lean.forward, lean.distinct
        self._block, self._output, self._threads = lean.block, lean.output, threads
        self._mode = torch.inference_mode()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one forward; the output is the tensor that it made."""
        # See device.Cpu: the setting is the thread's.
        torch.set_num_threads(self._threads)
        tensor, rows = torch.from_numpy, inputs.get(DENSE_ROWS)
        with self._mode:
            dense, lengths = tensor(inputs[DENSE]), tensor(inputs[_LENGTHS])
            ids = tensor(inputs[_VALUES])
            if rows is None:
                scores = self._forward(dense, lengths, ids, self._block)
            else:
                scores = self._distinct(dense, tensor(rows), lengths, ids, self._block)
        return {self._output: scores.numpy()}
