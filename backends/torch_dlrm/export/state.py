"""FP32 weights of a trained DLRM, whatever its checkpoint, as TorchRec's state dict and sizes."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from backends.checkpoints.read import Array, read_tensors
from backends.checkpoints.weights import averaged, find_weights
from backends.torch_dlrm.export.errors import ExportError
from backends.torch_dlrm.export.presets import DlrmShape, numbered
from scheduler.errors import LoadError

State = Mapping[str, torch.Tensor]

_TABLES = "sparse_arch.embedding_bag_collection.embedding_bags"
_TABLE = f"{_TABLES}.t_{{}}.weight"
_DENSE = "dense_arch.model._mlp.{}._linear"
_OVER = "over_arch.model.0._mlp.{}._linear"
_LAST = "over_arch.model.1"


def read_state(path: Path, features: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    """Return the DLRM in the checkpoint at ``path`` under the names of our own exporter's model.

    Its tables come in the model's order, which is that of ``features`` if they are given. Raises
    ExportError if the file holds anything but the finite FP32 weights of a DLRM.
    """
    try:
        weights = find_weights(read_tensors(path))
        names = weights.features(features)
    except LoadError as error:
        raise ExportError(f"{path}: {error}") from error
    arrays = dict(zip(map(_TABLE.format, names), weights.in_order(names), strict=True))
    over = [*map(_OVER.format, range(len(weights.over) - 1)), _LAST]
    dense = map(_DENSE.format, range(len(weights.dense)))
    for name, (weight, bias) in (
        *zip(dense, weights.dense, strict=True),
        *zip(over, weights.over, strict=True),
    ):
        arrays |= {f"{name}.weight": weight, f"{name}.bias": bias}
    return {name: torch.from_numpy(_writable(array)) for name, array in arrays.items()}


def shape_of(state: State, mean: str = "") -> DlrmShape:
    """Return the sizes of the DLRM with these weights, which ``read_state`` returned.

    ``mean`` has the features whose bags are averaged, with commas. Raises LoadError.
    """
    prefix, suffix = _TABLE.split("{}")
    tables = {
        name.removeprefix(prefix).removesuffix(suffix): tensor.shape[0]
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
    dense, over = _outputs(state, "dense_arch"), _outputs(state, "over_arch")
    return DlrmShape(
        features=tuple(tables),
        table_rows=tuple(tables.values()),
        dim=dense[-1],
        dense_names=numbered("int", state[f"{_DENSE.format(0)}.weight"].shape[1]),
        dense_layers=dense,
        over_layers=over,
        averaged=averaged(tuple(tables), mean),
    )


def _outputs(state: State, part: str) -> tuple[int, ...]:
    return tuple(
        tensor.shape[0]
        for name, tensor in state.items()
        if name.startswith(part) and name.endswith(".weight")
    )


def _writable(array: Array) -> Array:
    """Return memory that PyTorch takes without a warning, a copy if need be."""
    return array if array.flags.writeable else np.array(array)
