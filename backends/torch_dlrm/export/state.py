"""FP32 weights of a trained TorchRec DLRM: read a state dict, and tell the model's sizes by it."""

import itertools
import pickle
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from backends.torch_dlrm.export.errors import ExportError
from backends.torch_dlrm.export.presets import DlrmShape, numbered

State = Mapping[str, torch.Tensor]

_TABLE = "sparse_arch.embedding_bag_collection.embedding_bags.t_{}.weight"
_DENSE = "dense_arch.model._mlp.{}._linear"
_OVER = "over_arch.model.0._mlp.{}._linear"
_LAST = "over_arch.model.1"
_SHOWN = 5
_UNREADABLE = (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError, SafetensorError)


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors or ``weights_only`` torch file; strip what wraps the DLRM's own names.

    Raises ExportError if the file holds anything but finite FP32 tensors.
    """
    state = _without_prefix(_load(path))
    for key, tensor in state.items():
        if tensor.dtype != torch.float32:
            raise ExportError(f"{path}: {key} is {tensor.dtype}; give the FP32 weights")
        if not torch.isfinite(tensor).all():
            raise ExportError(f"{path}: {key} has values that are not finite")
    return state


def _load(path: Path) -> dict[str, torch.Tensor]:
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        # On bytes that are no zip, the old format's unpickler raises whatever it stumbles over.
        if path.is_file() and not zipfile.is_zipfile(path):
            raise ValueError("it is neither .safetensors nor written by torch.save")
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise ExportError(f"cannot read weights from {path}: {error}") from error
    if not isinstance(loaded, dict) or not all(torch.is_tensor(item) for item in loaded.values()):
        raise ExportError(f"{path} holds no state dict (names to tensors)")
    return loaded


def _without_prefix(state: State) -> dict[str, torch.Tensor]:
    """Strip ``model.``, ``module.`` or the like, as DLRMTrain and DDP add them."""
    first = _DENSE.format(0) + ".weight"
    prefix = next((key.removesuffix(first) for key in state if key.endswith(first)), "")
    return {key.removeprefix(prefix): tensor for key, tensor in state.items()}


def shape_of(state: State, features: tuple[str, ...]) -> DlrmShape:
    """Return the sizes of the DLRM with these weights; ``features`` names its tables in order.

    Raises ExportError naming the keys that are missing, unexpected or of the wrong shape.
    """
    tables = [_TABLE.format(feature) for feature in features]
    dense, over = list(_layers(state, _DENSE)), list(_layers(state, _OVER))
    required = [*tables, f"{_DENSE.format(0)}.weight", f"{_LAST}.weight"]
    wanted = "; --features gives the tables' features in order" if set(tables) - set(state) else ""
    _refuse("lacks", (key for key in required if key not in state), wanted)
    shape = DlrmShape(
        features=features,
        table_rows=tuple(state[table].shape[0] for table in tables),
        dim=dense[-1],
        dense_names=numbered("int", state[f"{_DENSE.format(0)}.weight"].shape[-1]),
        dense_layers=tuple(dense),
        over_layers=(*over, state[f"{_LAST}.weight"].shape[0]),
    )
    _compare(state, _expected(shape))
    return shape


def _layers(state: State, pattern: str) -> Iterable[int]:
    for number in itertools.count():
        weight = state.get(f"{pattern.format(number)}.weight")
        if weight is None:
            return
        yield weight.shape[0]


def _expected(shape: DlrmShape) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, tuple[int, ...]] = {
        _TABLE.format(feature): (rows, shape.dim)
        for feature, rows in zip(shape.features, shape.table_rows, strict=True)
    }
    dense = [_DENSE.format(number) for number in range(len(shape.dense_layers))]
    over = [_OVER.format(number) for number in range(len(shape.over_layers) - 1)]
    sizes |= _chain(dense, len(shape.dense_names), shape.dense_layers)
    return sizes | _chain([*over, _LAST], shape.over_inputs, shape.over_layers)


def _chain(names: list[str], inputs: int, layers: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    widths = [inputs, *layers]
    sizes: dict[str, tuple[int, ...]] = {}
    for name, (before, after) in zip(names, itertools.pairwise(widths), strict=True):
        sizes |= {f"{name}.weight": (after, before), f"{name}.bias": (after,)}
    return sizes


def _compare(state: State, expected: Mapping[str, tuple[int, ...]]) -> None:
    _refuse("lacks", (key for key in expected if key not in state))
    _refuse("has unexpected", (key for key in state if key not in expected))
    _refuse(
        "has the wrong shape for",
        (
            f"{key}: {tuple(state[key].shape)}, not {size}"
            for key, size in expected.items()
            if tuple(state[key].shape) != size
        ),
    )


def _refuse(what: str, found: Iterable[str], hint: str = "") -> None:
    keys = list(found)
    if keys:
        more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        raise ExportError(f"the state dict {what} {', '.join(keys[:_SHOWN])}{more}{hint}")
