"""What runs on the device for one batch: (dense, lengths, ids) there -> {output: scores} there."""

from collections.abc import Callable
from typing import TypeAlias

import torch

from backends.dlrm.gather import DENSE, IDS
from backends.kernels.interaction import Interact
from backends.torch_dlrm.device import Module
from backends.torch_dlrm.gpu.hardware import Gpu
from backends.torch_dlrm.gpu.tables import Lookup, Placed, make_lookup
from backends.torch_dlrm.scores import Scores
from backends.torch_dlrm.weights import Dlrm

Tensor = torch.Tensor
Forward: TypeAlias = Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]


class LeanForward:
    """The lean plan, operator by operator: no TorchScript, whose fuser compiles on a GPU.

    The lookup is shared by forwards that differ in ``interact`` (None: PyTorch's operators).
    """

    def __init__(
        self, lookup: Lookup, scores: Scores, output: str, interact: Interact | None
    ) -> None:
        self._lookup, self._scores = lookup, scores
        self._output = output
        self._interact = interact

    def __call__(self, dense: Tensor, lengths: Tensor, ids: Tensor) -> dict[str, Tensor]:
        """Enqueue one forward."""
        scores, pooled = self._scores, self._lookup(lengths, ids)
        if self._interact is None:
            return {self._output: scores(dense, pooled)}
        vector = scores.dense(dense)
        joined = self._interact(vector, pooled.view(-1, self._lookup.features, vector.shape[1]))
        return {self._output: scores.over(joined).sigmoid_().view(-1)}


def lean_parts(dlrm: Dlrm, placed: Placed, gpu: Gpu) -> tuple[Lookup, Scores]:
    """Return the lookup and everything after it, on the device."""
    return make_lookup(dlrm.tables, placed, gpu), Scores(dlrm).to(gpu.device).eval()


def artifact_forward(module: Module) -> Forward:
    """Return the file's own forward; its last operator copies to the host by itself."""

    def forward(dense: Tensor, lengths: Tensor, ids: Tensor) -> dict[str, Tensor]:
        return module({DENSE: dense, f"{IDS}.lengths": lengths, f"{IDS}.values": ids})

    return forward
