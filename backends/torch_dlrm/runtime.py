"""A loaded, warm TorchRec DLRM. The one place that imports PyTorch for serving."""

import logging
import queue
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from backends.torch_dlrm.artifact import Artifact, Facts, find_artifact, settle
from backends.torch_dlrm.device import Device, make_device, parse_device
from backends.torch_dlrm.gather import DENSE, Staging
from backends.torch_dlrm.options import Options
from backends.torch_dlrm.torchscript import derive, libraries, load_module
from scheduler.errors import LoadError
from scheduler.types import Array, Batch, InferRequest, ModelSpec, TensorSpec

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Lane:
    """What one forward needs for itself."""

    staging: Staging
    device: Device


class Runtime:
    """Run one module from at most ``lanes`` threads at once."""

    def __init__(
        self, module: torch.jit.ScriptModule, facts: Facts, lanes: int, options: Options
    ) -> None:
        device = parse_device(options.device)
        self._module = module
        self._wanted = options.outputs
        self._lanes: queue.SimpleQueue[_Lane] = queue.SimpleQueue()
        for _ in range(lanes):
            runner = make_device(device)
            staging = Staging(
                facts.layout, facts.dense_features, options.max_batch_rows, runner.allocate
            )
            self._lanes.put(_Lane(staging, runner))

    def run(self, batch: Batch) -> dict[str, Array]:
        """Return every wanted output, first axis ``batch.rows``, in memory of its own."""
        lane = self._lanes.get()
        try:
            outputs = lane.device.run(self._module, lane.staging.gather(batch))
        finally:
            self._lanes.put(lane)
        return {name: _by_row(outputs[name]) for name in self._wanted or outputs}


def _by_row(scores: Array) -> Array:
    """Drop the last axis of (rows, 1): one score a row, whichever way it was packaged."""
    return scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores
