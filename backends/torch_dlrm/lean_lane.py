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
        self._score, self._output, self._threads = lean.score, lean.output, threads
        self._mode = torch.inference_mode()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one forward; the output is the tensor that it made."""
        # See device.Cpu: the setting is the thread's.
        torch.set_num_threads(self._threads)
        tensor, rows = torch.from_numpy, inputs.get(DENSE_ROWS)
        with self._mode:
            scores = self._score(
                tensor(inputs[DENSE]),
                None if rows is None else tensor(rows),
                tensor(inputs[_LENGTHS]),
                tensor(inputs[_VALUES]),
            )
        return {self._output: scores.numpy()}
