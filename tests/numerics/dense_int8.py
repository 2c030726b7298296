"""What INT8 dense layers would cost and save: ``python -m tests.numerics.dense_int8 [FOLDER]``.

Activations are scaled row by row, so that a score does not depend on its batch-mates' sizes, and
weights by output. Integer products are torch._int_mm's (oneDNN: VNNI or AMX). Beside it the layers
that are served, FP32 and BF16. Times are CPU of one thread, of everything after the lookup, taking
turns; the first quartile, and the median of the ratios to FP32.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backends.dlrm.gather import DENSE, IDS
from backends.dlrm.manifest import MODEL_FILE
from backends.torch_dlrm.options import BF16, FP32
from backends.torch_dlrm.recognise import recognise
from backends.torch_dlrm.scores import Lookup, Scores
from backends.torch_dlrm.weights import Layer
from backends.torchscript_file.reader import read_torchscript
from loadtest.lab.tables import print_table

Tensor = torch.Tensor
_int_mm: Callable[[Tensor, Tensor], Tensor] = torch._int_mm  # the only one that PyTorch has
TURNS = {1: 60, 100: 40, 1600: 12}


class Int8Layers(torch.nn.Module):
    """Linear layers over integers, each row of activations with a scale of its own."""

    def __init__(self, layers: Sequence[Layer], *, last_is_linear: bool) -> None:
        super().__init__()
        self._relus = len(layers) - last_is_linear
        self._layers = [_packed(layer) for layer in layers]

    def forward(self, values: Tensor) -> Tensor:
        """Return what the layers make of ``values`` (rows, n)."""
        for number, (weight, scale, bias, plain) in enumerate(self._layers):
            # oneDNN wants multiples of four; the layers at either end have none.
            if weight.shape[0] % 4 or weight.shape[1] == 1:
                values = torch.addmm(bias, values, plain)
            else:
                rows = values.abs().amax(1, keepdim=True).clamp_min_(1e-12).div_(127)
                products = _int_mm((values / rows).round_().to(torch.int8), weight)
                values = torch.addcmul(bias, products.float().mul_(rows), scale)
            values = values.relu_() if number < self._relus else values
        return values


def _packed(layer: Layer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weight = torch.from_numpy(np.array(layer.weight))
    scale = weight.abs().amax(1, keepdim=True) / 127
    whole = (weight / scale).round().to(torch.int8)
    bias = torch.from_numpy(np.array(layer.bias))
    return whole.T.contiguous(), scale.T.contiguous(), bias, weight.T.contiguous()


def main(argv: Sequence[str]) -> None:
    """Print errors and times."""
    folder = Path(argv[0] if argv else "artifacts/reference")
    torch.set_num_threads(1)
    dlrm = recognise(read_torchscript(folder / MODEL_FILE).root)
    ways = {name: Scores(dlrm, name) for name in (FP32, BF16)}
    ways["int8"] = int8 = Scores(dlrm, FP32)
    int8.add_module("dense", Int8Layers(dlrm.dense, last_is_linear=False))
    int8.add_module("over", Int8Layers(dlrm.over, last_is_linear=True))
    with torch.inference_mode(), np.load(folder / "golden.npz") as golden:
        lengths = torch.from_numpy(golden[f"{IDS}.lengths"].reshape(-1).astype(np.int32))
        ids = torch.from_numpy(golden[f"{IDS}.values"].astype(np.int32))
        block = torch.from_numpy(np.array(dlrm.tables.block))
        inputs = torch.from_numpy(golden[DENSE]), Lookup(dlrm.tables)(lengths, ids, block)
        exact = next(golden[name].reshape(-1) for name in golden.files if name.startswith("fp32"))
        print_table([_error(name, way, inputs, exact) for name, way in ways.items()])
        for rows in TURNS:
            print(f"\n{rows} rows, load average {os.getloadavg()[0]:.1f}")
            print_table(_times(ways, rows, inputs))


def _error(
    name: str, way: Scores, inputs: tuple[Tensor, Tensor], exact: Any
) -> dict[str, float | str]:
    dense, pooled = inputs
    scores = way(dense, pooled).numpy()
    alone = [way(dense[row : row + 1], pooled[row : row + 1]).item() for row in range(len(scores))]
    off = np.abs(scores - exact)
    changed = np.abs(scores - np.array(alone, np.float32)).max()
    return {
        "dense": name, "largest error": f"{off.max():.1e}", "mean": f"{off.mean():.1e}",
        "alone or in a batch": f"{changed:.1e}",
    }  # fmt: skip


def _times(
    ways: dict[str, Scores], rows: int, inputs: tuple[Tensor, Tensor]
) -> list[dict[str, float | str]]:
    dense, pooled = (each.repeat(-(-rows // len(each)), 1)[:rows] for each in inputs)
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS[rows] + 3):
        for name, way in ways.items():
            begin_s = time.thread_time()
            way(dense, pooled)
            if turn >= 3:
                spent[name].append(time.thread_time() - begin_s)
    return [
        {
            "dense": name,
            "us": statistics.quantiles(each)[0] * 1e6,
            "of fp32": statistics.median(
                one / base for one, base in zip(each, spent[FP32], strict=True)
            ),
        }
        for name, each in spent.items()
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
