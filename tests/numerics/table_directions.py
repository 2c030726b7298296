"""``python -m tests.numerics.table_directions FOLDER``: in how many directions errors count.

Rounding up or down so that an error has no part in some directions pays if scores react to these
and little to others. Printed for each table's vectors: how much of a score's squared gradients lies
in the first directions of other requests' gradients. Needs PyTorch.
"""

import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from backends.dlrm.forward.model import Dlrm, Linear
from backends.dlrm.gather import DENSE, IDS
from backends.native_dlrm.reference import Reference
from backends.native_dlrm.source import find_source
from scheduler.types import Array

Wide = npt.NDArray[np.float64]
_ROWS, _COUNTS = 2000, (1, 2, 4, 8, 16, 32)


def main(argv: Sequence[str]) -> None:
    """Print a Markdown table."""
    dlrm = find_source(argv[0], verify=False).dlrm
    titles = " | ".join(f"{count}" for count in _COUNTS)
    sys.stdout.write(f"| requests | {titles} |\n{'|---' * (len(_COUNTS) + 1)}|\n")
    for name, bags in (("one id a bag", (1,)), ("bags of 0 to 5 ids", (0, 1, 2, 3, 4, 5))):
        shares = _shares(_gradients(dlrm, bags))
        found = " | ".join(f"{share:.2f}" for share in shares[[n - 1 for n in _COUNTS]])
        sys.stdout.write(f"| {name} | {found} |\n")


def _shares(gradients: Wide) -> Wide:
    """Return the share in the first 1, 2, ... directions of ``gradients`` (rows, tables, dim)."""
    seen, others = np.split(gradients, 2)
    shares = []
    for table in range(gradients.shape[1]):
        _, directions = np.linalg.eigh(seen[:, table].T @ seen[:, table])
        parts = np.square(others[:, table] @ directions[:, ::-1]).sum(axis=0)
        shares.append(np.cumsum(parts) / parts.sum())
    mean: Wide = np.mean(shares, axis=0)
    return mean


def _gradients(dlrm: Dlrm, bags: Sequence[int]) -> Wide:
    """Return what seeded requests' scores make of each pooled vector, (rows, tables, dim)."""
    inputs = _requests(dlrm, bags)
    hidden = _layers(torch.tensor(inputs[DENSE]), dlrm.dense)
    pooled = Reference(dlrm).vectors(
        hidden.numpy(), inputs[f"{IDS}.lengths"], inputs[f"{IDS}.values"]
    )
    vectors = torch.tensor(pooled, requires_grad=True)
    left, right = np.triu_indices(pooled.shape[1], 1)
    products = (vectors @ vectors.transpose(1, 2))[:, left, right]
    logits = _layers(torch.cat([vectors[:, 0], products], dim=1), dlrm.over)
    scores = torch.sigmoid(logits) if dlrm.sigmoid else logits
    (found,) = torch.autograd.grad(scores.sum(), vectors)
    gradients: Wide = found.numpy()[:, 1:]
    return gradients


def _requests(dlrm: Dlrm, bags: Sequence[int]) -> dict[str, Array]:
    random, tables = np.random.default_rng(5), len(dlrm.tables)
    lengths = random.choice(np.asarray(bags, np.int32), (tables, _ROWS))
    counts = lengths.sum(axis=1).tolist()
    ids = [random.integers(0, len(t.data), n) for t, n in zip(dlrm.tables, counts, strict=True)]
    return {
        DENSE: random.standard_normal((_ROWS, dlrm.dense_features)),
        f"{IDS}.lengths": lengths.reshape(-1),
        f"{IDS}.values": np.concatenate(ids),
    }


def _layers(values: torch.Tensor, layers: Sequence[Linear]) -> torch.Tensor:
    for layer in layers:
        weight, bias = (
            torch.tensor(part.astype(np.float64)) for part in (layer.weight, layer.bias)
        )
        values = values @ weight.T + bias
        values = torch.relu(values) if layer.relu else values
    return values


if __name__ == "__main__":
    main(sys.argv[1:])
